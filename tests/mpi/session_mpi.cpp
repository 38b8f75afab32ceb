// A small gpt on the ranks of an mpirun and on as many threads of this process: the same bits, for
// losses and for all that is stored. The exit status is the number of differences.
#include <cstdio>
#include <map>

#include "tessera/tessera.h"

using namespace tessera;

namespace {

constexpr int kSteps = 4;

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, Array> stored;
};

void feed_tokens(Session& session, const nn::Model& model, int step) {
  for (const Tensor& input : model.inputs) {
    const Shape& shape = input.shape();
    Array tokens(DType::int32, shape.names(), {shape[0].size, shape[1].size});
    const int64_t length = shape[1].size, shift = input.name() == "targets" ? 1 : 0;
    for (int64_t i = 0; i < tokens.elements(); ++i) {
      const int64_t at = step * 7 + i / length * 5 + i % length + shift;
      tokens.data<int32_t>()[i] = static_cast<int32_t>(at * at % 17);
    }
    session.feed(input.name(), tokens);
  }
}

Outcome train(Cluster& ranks, const Mesh& mesh, const std::string& layout) {
  Graph g;
  nn::GptOptions o;
  o.layers = 2;
  o.d_model = 12;
  o.heads = 3;
  o.ff = 14;
  o.length = 6;
  o.vocab = 17;
  o.batch = 10;
  const nn::Model model = nn::gpt(g, o);
  model.loss.named("loss");
  MinimizeOptions options;
  options.clip = 1;
  minimize(model.loss, constant(g, 0.01), adam(), options);
  CompileOptions compile{mesh, Layout::parse(layout), {{"train", {model.loss}, true}}};
  Session session(g, ranks, compile);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    feed_tokens(session, model, step);
    session.run("train");
    outcome.losses.push_back(session.fetch_scalar(model.loss.name()));
  }
  for (const std::string& name : session.stored_names()) outcome.stored[name] = session.fetch(name);
  return outcome;
}

int differences(const Outcome& a, const Outcome& b, const std::string& layout) {
  int count = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (a.losses[step] == b.losses[step]) continue;
    std::fprintf(stderr, "%s: step %d: loss %.17g under MPI, %.17g on threads\n", layout.c_str(),
                 step + 1, a.losses[step], b.losses[step]);
    ++count;
  }
  for (const auto& [name, array] : a.stored) {
    if (array.bytes == b.stored.at(name).bytes) continue;
    std::fprintf(stderr, "%s: '%s' differs\n", layout.c_str(), name.c_str());
    ++count;
  }
  return count;
}

}  // namespace

int main() {
  try {
    Cluster mpi = Cluster::mpi();
    const int n = mpi.size(), b = n % 2 == 0 && n > 2 ? 2 : 1;
    const Mesh mesh({{"a", n / b}, {"b", b}});
    int wrong = 0;
    for (const std::string layout : {"batch:a;heads,ff,vocab:b", "batch:a+b", "length:a;d_model:b",
                                     "ff,vocab:a;@state d_model:b", "batch:b;@params d_model:a"}) {
      const Outcome here = train(mpi, mesh, layout);
      if (!mpi.is_root()) continue;
      Cluster threads = Cluster::threads(n);
      const Outcome there = train(threads, mesh, layout);
      wrong += differences(here, there, layout);
      std::printf("%-30s loss %.9g .. %.9g\n", layout.c_str(), here.losses.front(),
                  here.losses.back());
    }
    return wrong > 100 ? 100 : wrong;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 101;
  }
}
