// All ranks gather the lengths of their texts; the first with one broadcasts it. An error travels
// as the number of its kind in front of its message.
#include "io/agree.h"

#include <algorithm>
#include <vector>

#include "base/fail.h"
#include "collectives/communicator.h"

namespace tessera {

std::string first_text(Cluster& cluster, const std::string& mine) {
  if (cluster.local_ranks() == cluster.size()) return mine;
  std::string text = mine;
  cluster.run([&](int, Communicator& world) {
    const auto length = static_cast<int64_t>(mine.size());
    std::vector<int64_t> lengths(static_cast<size_t>(world.size()));
    Collective gather;
    gather.kind = CollectiveKind::all_gather;
    gather.dtype = DType::int64;
    gather.in = &length;
    gather.out = lengths.data();
    gather.inner = 1;
    gather.site.text = "agreeing on a text";
    world.run(gather);
    const auto first =
        std::find_if(lengths.begin(), lengths.end(), [](int64_t n) { return n > 0; });
    if (first == lengths.end()) return;
    text.resize(static_cast<size_t>(*first));
    Collective send;
    send.kind = CollectiveKind::broadcast;
    send.dtype = DType::uint8;
    send.out = text.data();
    send.count = *first;
    send.root = static_cast<int>(first - lengths.begin());
    send.site.text = gather.site.text;
    world.run(send);
  });
  return text;
}

void run_together(Cluster& cluster, const std::function<void()>& work) {
  std::string failure;
  auto encode = [](ErrorKind kind, const char* what) {
    return static_cast<char>('0' + static_cast<int>(kind)) + std::string(what);
  };
  try {
    work();
  } catch (const Error& e) {
    failure = encode(e.kind(), e.what());
  } catch (const std::exception& e) {
    failure = encode(ErrorKind::io, e.what());
  }
  failure = first_text(cluster, failure);
  if (!failure.empty()) throw Error(static_cast<ErrorKind>(failure[0] - '0'), failure.substr(1));
}

}  // namespace tessera
