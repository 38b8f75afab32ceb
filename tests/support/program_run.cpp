#include "support/program_run.h"

#include <cstring>
#include <mutex>

#include "base/fail.h"
#include "compile/kernel_info.h"
#include "kernels/cpu/takes_epilogue.h"
#include "lower/lower.h"
#include "program/text.h"
#include "runtime/executor.h"
#include "session/slices.h"

namespace tessera::test {

/// The run on one rank, which the others are compared with, shares every step between threads.
static int threads_for(int ranks) { return ranks == 1 ? 3 : 1; }

Program lower_for_cpu(const Graph& graph, const std::string& mesh, const std::string& layout,
                      const std::vector<FunctionSpec>& functions) {
  const int threads = threads_for(Mesh::parse(mesh).size());
  LowerOptions options{Mesh::parse(mesh),
                       Layout::parse(layout),
                       functions,
                       composite_kernels(),
                       [threads](const Step& step) { return workspace_bytes(step, threads, 0); },
                       {}};
  options.takes_epilogue = cpu::takes_epilogue;
  return lower(graph, options);
}

namespace {

/// A port that covers the transient memory of `program`, to which it adds a buffer.
Port all_transient(Program& program) {
  program.buffers.push_back({"poison", ArenaKind::transient, program.transient_bytes, 0});
  Port port;
  port.view.buffer = static_cast<int>(program.buffers.size()) - 1;
  port.view.dtype = DType::uint8;
  return port;
}

void fill(const Program& program, Executor& executor, const std::vector<int>& ports,
          const Wholes& values, const std::vector<int64_t>& scalars) {
  for (int p : ports) {
    const Port& port = program.ports[p];
    const Slice slice = slice_of(program, port, executor, scalars);
    std::memset(slice.data, 0,
                static_cast<size_t>(port.view.elements() * size_of(port.view.dtype)));
    if (auto it = values.find(port.name); it != values.end())
      copy_in(array_of(it->second, port.view.dtype), slice);
  }
}

/// The contract of stored tensors: what lies behind the valid elements is zero.
void require_zero_padding(const Program& program, const Port& port, const Executor& executor,
                          const std::vector<int64_t>& scalars) {
  const Slice slice = slice_of(program, port, executor, scalars);
  Array held(slice.dtype, port.dims, port.view.sizes);
  std::memcpy(held.bytes.data(), slice.data, held.bytes.size());
  int64_t i = 0;
  each_index(port.view.sizes, [&](const std::vector<int64_t>& index) {
    bool valid = true;
    for (size_t d = 0; d < index.size(); ++d) valid = valid && index[d] < slice.valid[d];
    const double x = held.at(i++);
    TESSERA_CHECK(valid || x == 0, "the padding of '{}' holds {} on rank {}", port.name, x,
                  slice.rank);
  });
}

}  // namespace

static void give_functions(const std::vector<Function>& from, std::vector<Function>& to) {
  for (size_t f = 0; f < from.size(); ++f) {
    for (size_t s = 0; s < from[f].steps.size(); ++s) {
      to[f].steps[s].host.function = from[f].steps[s].host.function;
      give_functions(from[f].steps[s].body, to[f].steps[s].body);
    }
  }
}

Program read_back(const Program& program) {
  const std::string text = write_program(program);
  Program read = read_program(text);
  TESSERA_CHECK(write_program(read) == text, "a Program is another one when it is read:\n{}\n{}",
                text, write_program(read));
  TESSERA_CHECK(to_string(read) == to_string(program), "what ranks compare depends on notes");
  give_functions(program.functions, read.functions);
  return read;
}

std::vector<Wholes> run_program(const Program& original, Cluster& cluster,
                                const std::string& function, const std::vector<Wholes>& rounds) {
  Program program = read_back(original);
  const Port poison = all_transient(program);
  const Function& f = program.functions[program.function(function)];
  std::vector<int64_t> scalars(program.scalars.size(), 0);
  for (const Port& port : program.ports) {
    for (size_t d = 0; d < port.sizes.size(); ++d) {
      if (port.scalars[d] >= 0) scalars[port.scalars[d]] = port.sizes[d];
    }
  }
  std::vector<int> read = f.outputs;
  read.insert(read.end(), program.stored.begin(), program.stored.end());
  std::map<std::string, Array> empty;
  for (int p : read) empty[program.ports[p].name] = array_for(program.ports[p], scalars);
  std::vector<std::map<std::string, Array>> results(rounds.size(), empty);
  std::mutex mutex;
  cluster.run([&](int, Communicator& world) {
    Executor executor(program, world.split(0, world.rank()), scalars.data(),
                      {threads_for(world.size()), 0});
    for (size_t r = 0; r < rounds.size(); ++r) {
      world.barrier();
      std::memset(executor.data(poison), 0xff, static_cast<size_t>(program.transient_bytes));
      fill(program, executor, f.inputs, rounds[r], scalars);
      fill(program, executor, program.stored, rounds[r], scalars);
      world.barrier();
      executor.run(program.function(function));
      for (int p : program.stored)
        require_zero_padding(program, program.ports[p], executor, scalars);
      std::lock_guard lock(mutex);
      for (int p : read) {
        const Slice slice = slice_of(program, program.ports[p], executor, scalars);
        if (slice.is_owner) copy_out(slice, results[r][program.ports[p].name]);
      }
    }
  });
  std::vector<Wholes> wholes(rounds.size());
  for (size_t r = 0; r < rounds.size(); ++r) {
    for (const auto& [name, array] : results[r]) wholes[r][name] = whole_of(array);
  }
  return wholes;
}

}  // namespace tessera::test
