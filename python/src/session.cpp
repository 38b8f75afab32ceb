// Ranks, sessions, reports and checkpoints.
#include <set>

#include "callback.h"
#include "tessera/checkpoint.h"
#include "tessera/explain.h"
#include "tessera/inspect.h"
#include "tessera/interop/mpi_library.h"
#include "tessera/op.h"

namespace tessera::python {

namespace {

CompileOptions options_of(const std::string& mesh, const std::string& layout,
                          const std::vector<FunctionSpec>& functions, uint64_t seed,
                          const std::string& device, const std::vector<std::string>& keep,
                          int threads_per_rank, int64_t strict_chunks,
                          const std::function<void(const std::string&)>& print) {
  CompileOptions o;
  o.mesh = Mesh::parse(mesh);
  o.layout = Layout::parse(layout);
  o.functions = functions;
  o.seed = seed;
  o.device = device;
  o.keep = keep;
  o.threads_per_rank = threads_per_rank;
  o.strict_chunks = strict_chunks;
  o.print = print;
  o.interrupted = interrupted;
  return o;
}

nb::dict table_of(const CollectiveReport& c) {
  nb::dict row;
  row["kind"] = c.kind;
  row["tensor"] = c.tensor;
  row["source"] = c.source;
  row["rule"] = c.rule;
  row["axes"] = c.axes;
  row["ranks"] = c.ranks;
  row["bytes"] = c.bytes;
  row["times"] = c.times;
  return row;
}

nb::dict memory_of(const MemoryReport& m) {
  nb::dict row;
  row["params"] = m.params;
  row["state"] = m.state;
  row["inputs"] = m.inputs;
  row["transient"] = m.transient;
  return row;
}

/// The local ranks' slices: (rank, offset of each dim, array). In place on the CPU.
nb::list slices_of(nb::handle session, const std::string& name) {
  nb::list all;
  for (const Slice& s : nb::cast<Session&>(session).slices(name)) {
    const std::vector<size_t> valid(s.valid.begin(), s.valid.end());
    all.append(nb::make_tuple(s.rank, s.offset,
                              nb::ndarray<nb::numpy>(s.data, valid.size(), valid.data(), session,
                                                     s.strides.data(), dlpack_of(s.dtype))));
  }
  return all;
}

/// The inputs that `function` reads, in the order of the model: name, and "train.py:9 declares
/// int32 [batch=32]".
std::vector<std::pair<std::string, std::string>> inputs_of(const Graph& g, const Session& session,
                                                           const std::string& function) {
  const std::vector<std::string> all = session.program().find(function, "*");
  const std::set<std::string> known(all.begin(), all.end());
  std::vector<std::pair<std::string, std::string>> inputs;
  for (const Node& node : g.nodes()) {
    if (std::string_view(node.op->name) != "input") continue;
    const Value& x = g.value(node.out[0]);
    if (!known.contains(x.name) || g.constants().contains(x.name)) continue;
    inputs.emplace_back(x.name, node.at.to_string() + " declares " + to_string(x.dtype) + " " +
                                    x.shape.to_string());
  }
  return inputs;
}

void bind_reports(nb::module_& m) {
  nb::class_<Explanation>(m, "Explanation", "How a layout runs a model: str() is the report.")
      .def("__str__", [](const Explanation& e) { return to_string(e); })
      .def_prop_ro(
          "memory", [](const Explanation& e) { return memory_of(e.memory); }, "Bytes of a rank.")
      .def_prop_ro("notes", [](const Explanation& e) { return e.notes; })
      .def_prop_ro(
          "collectives",
          [](const Explanation& e) {
            nb::list rows;
            for (const FunctionReport& f : e.functions) {
              if (f.name == "init") continue;
              for (const CollectiveReport& c : f.collectives) rows.append(table_of(c));
            }
            return rows;
          },
          "A dict for each collective of a step.");
  m.def(
      "explain",
      [](const Graph& g, const CompileOptions& o, const Machine* machine) {
        return explain(g, o, {}, machine);
      },
      Releasing(), nb::arg("graph"), nb::arg("options"), nb::arg("machine").none());
  m.def(
      "legal_layouts",
      [](const Graph& g, const std::string& mesh, const std::vector<FunctionSpec>& functions) {
        std::vector<std::string> all;
        for (const Layout& layout : legal_layouts(g, Mesh::parse(mesh), functions))
          all.push_back(layout.to_string());
        return all;
      },
      Releasing());
}

void bind_checkpoints(nb::module_& m) {
  nb::class_<Checkpoints>(m, "Checkpoints")
      .def(nb::init<Cluster&, const std::string&, int>(), Releasing(), nb::keep_alive<1, 2>(),
           nb::arg("cluster"), nb::arg("directory"), nb::arg("keep"))
      .def(
          "save",
          [](Checkpoints& c, Session& session, int64_t step,
             const std::map<std::string, std::string>& metadata) {
            return c.save(session, step, metadata).path;
          },
          Releasing());
  m.def(
      "load_checkpoint",
      [](Session& session, const std::string& path,
         const std::optional<std::vector<std::string>>& names) {
        const Checkpoint loaded =
            names ? load_tensors(session, path, *names) : load_checkpoint(session, path);
        return std::pair(loaded.step, loaded.warning);
      },
      Releasing(), nb::arg("session"), nb::arg("path"), nb::arg("names").none());
  m.def(
      "find_latest",
      [](const std::string& folder) -> std::optional<std::string> {
        const std::optional<Checkpoint> found = find_latest(folder);
        return found ? std::optional(found->path) : std::nullopt;
      },
      Releasing());
}

}  // namespace

void bind_session(nb::module_& m) {
  nb::class_<Cluster>(m, "Cluster",
                      "The ranks: threads of this process, or processes under a launcher.")
      .def_static("threads", &Cluster::threads, At(), nb::arg("ranks"))
      .def_static(
          "adopt",
          [](const nb::object& comm) {
            const nb::module_ mpi = nb::module_::import_("mpi4py.MPI");
            if (!nb::isinstance(comm, mpi.attr("Comm")))
              throw nb::type_error(("Cluster.adopt() takes a communicator of mpi4py, not " +
                                    std::string(nb::repr(comm).c_str()))
                                       .c_str());
            const bool usable = nb::cast<bool>(mpi.attr("Is_initialized")()) &&
                                !nb::cast<bool>(mpi.attr("Is_finalized")()) &&
                                !comm.equal(mpi.attr("COMM_NULL"));
            const auto address = nb::cast<uintptr_t>(mpi.attr("_addressof")(comm));
            const auto library = nb::cast<std::string>(mpi.attr("Get_library_version")());
            const ReleaseGil released;
            return adopt_mpi(usable ? reinterpret_cast<const void*>(address) : nullptr, library);
          },
          At(), nb::arg("comm"),
          "The processes of a communicator of mpi4py, which is duplicated. Collective over it.")
      .def_static("from_environment", &Cluster::from_environment, At(), nb::arg("ranks") = 1)
      .def_prop_ro("size", &Cluster::size)
      .def_prop_ro("is_root", &Cluster::is_root)
      .def_prop_ro("backend", &Cluster::backend)
      .def("set_timeout", &Cluster::set_timeout, nb::arg("seconds"),
           "How long a rank waits for its peers before it fails.")
      .def("recover", &Cluster::recover)
      .def("fail", &Cluster::fail, Releasing(), nb::arg("message"),
           "Tells all other processes that this one fails: their waits end with `message`.");
  nb::class_<FunctionSpec>(m, "FunctionSpec")
      .def("__init__", [](FunctionSpec* self, const std::string& name,
                          const std::vector<Tensor>& outputs, bool updates) {
        new (self) FunctionSpec{name, outputs, updates};
      });
  nb::class_<CompileOptions>(m, "CompileOptions")
      .def(
          "__init__",
          [](CompileOptions* self, const std::string& mesh, const std::string& layout,
             const std::vector<FunctionSpec>& functions, uint64_t seed, const std::string& device,
             const std::vector<std::string>& keep, int threads_per_rank, int64_t strict_chunks,
             const std::function<void(const std::string&)>& print) {
            new (self) CompileOptions(options_of(mesh, layout, functions, seed, device, keep,
                                                 threads_per_rank, strict_chunks, print));
          },
          At());
  m.def(
      "mesh_size", [](const std::string& mesh) { return Mesh::parse(mesh).size(); }, At());
  m.def(
      "state_hash",
      [](Session& session) {
        const ReleaseGil released;
        return state_hash(session).all;
      },
      At());
  nb::class_<Session>(m, "Session")
      .def(
          "__init__",
          [](Session* self, const Graph& g, Cluster& cluster, const CompileOptions& o) {
            bool made = false;
            try {
              interruptibly([&] {
                new (self) Session(g, cluster, o);
                made = true;
              });
            } catch (...) {
              if (made) self->~Session();
              throw;
            }
          },
          At(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def(
          "feed",
          [](Session& s, const std::string& name, const AnyArray& array) {
            const ArrayView view = view_of(array);
            const ReleaseGil released;
            s.feed(name, view);
          },
          At(), nb::arg("name"), nb::arg("array").noconvert())
      .def(
          "set_size",
          [](Session& s, nb::handle dim, int64_t size) { s.set_size(name_of(dim), size); }, At())
      .def(
          "run",
          [](Session& s, const std::string& function) { interruptibly([&] { s.run(function); }); },
          At())
      .def(
          "fetch",
          [](Session& s, const std::string& name) {
            Array array;
            {
              const ReleaseGil released;
              array = s.fetch(name);
            }
            return numpy_of(std::move(array));
          },
          At())
      .def(
          "fetch_scalar", [](Session& s, const std::string& name) { return s.fetch_scalar(name); },
          Releasing())
      .def(
          "assign",
          [](Session& s, const std::string& name, const AnyArray& array) {
            const ArrayView view = view_of(array);
            const ReleaseGil released;
            s.assign(name, view);
          },
          At(), nb::arg("name"), nb::arg("array").noconvert())
      .def(
          "set_step", [](Session& s, int64_t step) { s.set_step(step); }, At())
      .def_prop_ro("step", &Session::step)
      .def_prop_ro("device", &Session::device)
      .def_prop_ro("fallbacks", &Session::fallbacks)
      .def_prop_ro("persistent_bytes",
                   [](const Session& s) { return s.program().persistent_bytes(); })
      .def_prop_ro("transient_bytes",
                   [](const Session& s) { return s.program().transient_bytes(); })
      .def_prop_ro("program_text", [](const Session& s) { return s.program().text(); })
      .def_prop_ro("program_hash", [](const Session& s) { return s.program().hash(); })
      .def_prop_ro("stored_names", [](const Session& s) { return s.program().stored_names(); });
  m.def("slices", &slices_of, At());
  m.def("inputs_of", &inputs_of);
  bind_reports(m);
  bind_checkpoints(m);
}

}  // namespace tessera::python
