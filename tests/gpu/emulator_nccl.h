// Groups of the emulated GPU: ranks are threads, and a call is made when the streams of all stand
// at it.
#pragma once

#include "gpu/emulator_state.h"

namespace tessera::test {

class EmulatedNccl final : public CudaNcclApi {
 public:
  /// streams: of the same emulator.
  EmulatedNccl(EmulatorState& state, CudaStreamApi& streams);
  ~EmulatedNccl() override;
  std::string group_id() override;
  CudaGroup join(const std::string& id, int rank, int size, double seconds) override;
  /// join() in two steps, for those who poll.
  CudaGroup begin_join(const std::string& id, int rank, int size);
  bool has_joined(CudaGroup group);
  void begin_calls() override;
  void end_calls() override;
  void all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  Combiner combiner, CudaStream stream) override;
  void reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                      Combiner combiner, CudaStream stream) override;
  void all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  CudaStream stream) override;
  std::string trouble(CudaGroup group) override;
  void abort(CudaGroup group) noexcept override;

 private:
  struct Group;
  struct Member;
  struct Call;
  enum class Kind { all_reduce, reduce_scatter, all_gather };
  void call(CudaGroup group, const void* in, int64_t in_count, void* out, int64_t out_count,
            DType dtype, Kind kind, Combiner combiner, CudaStream stream);

  EmulatorState& state_;
  CudaStreamApi& streams_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::vector<std::shared_ptr<Member>> members_;
};

}  // namespace tessera::test
