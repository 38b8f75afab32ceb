// Which device a rank computes on.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "tessera/cluster.h"
#include "tessera/session.h"

namespace tessera {

/// A device as the user asks for it: "cpu"; "cuda"; "cuda:share", where several processes may use
/// one GPU; or "auto": cuda if every rank has a GPU, else cpu.
struct DeviceChoice {
  bool cuda = false;
  bool share = false;
  bool tf32 = false;
  bool is_strict = false;                         ///< sums have their canonical order
  std::shared_ptr<const CudaGuests> guests = {};  ///< what local ranks were lent, or null
};
/// Throws a usage error for another word, for loans that are not one for each local rank, or of a
/// GPU that is not there; and unsupported with the reason where cuda is asked for and this machine
/// or another rank's has none. Collective.
DeviceChoice choose_device(const CompileOptions& options, Cluster& cluster);

/// The GPU of a rank: the only visible one, or that of the number of the rank on its host.
int gpu_of(int local_rank, int gpus);
/// Throws a usage error if two processes would use one GPU: `ids` are the GPUs' own names with
/// their hosts, by rank.
void require_own_gpus(const std::vector<std::string>& ids);

/// The device of local rank `rank`; null for the CPU, which the executor makes itself. threads: all
/// ranks are of this process. Collective over `world`.
std::unique_ptr<Device> make_device(const DeviceChoice& choice, bool threads, int rank,
                                    Communicator& world);
/// By buffer of the program: the memory that local rank `rank` was lent for inputs and outputs.
/// Throws usage errors: see adopt_cuda().
std::map<int, void*> lent_buffers(const DeviceChoice& choice, const Program& program, int rank);

/// The threads of one rank: `asked`, or for 0 the cores of this host over its ranks.
int threads_for(int asked, const Cluster& cluster);

/// The workspace of a step, for lowering.
int64_t workspace_bytes(const DeviceChoice& choice, const Step& step, int threads);

}  // namespace tessera
