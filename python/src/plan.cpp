// Machines, plans and simulations.
#include "tessera/plan.h"

#include "convert.h"
#include "tessera/simulate.h"

namespace tessera::python {

namespace {

nb::dict row_of(const PricedPlan& p) {
  nb::dict row;
  row["mesh"] = p.mesh.to_string();
  row["layout"] = p.layout;
  row["seconds"] = p.seconds;
  row["compute"] = p.compute;
  row["exposed"] = p.exposed;
  row["memory"] = p.memory();
  return row;
}

nb::dict row_of(const SimulatedStep& s) {
  nb::dict row;
  row["name"] = s.name;
  row["kernel"] = s.kernel;
  row["source"] = s.source;
  row["axes"] = s.axes;
  row["begin"] = s.begin;
  row["seconds"] = s.seconds;
  row["exposed"] = s.exposed;
  row["bytes"] = s.bytes;
  return row;
}

/// The layout and storage of given functions, on a mesh or on any mesh of so many devices.
Plan plan_for(const std::shared_ptr<Graph>& graph, const std::vector<FunctionSpec>& functions,
              const std::string& mesh, int64_t devices, const Machine& machine,
              const std::string& layout, std::optional<int64_t> memory, double seconds) {
  PlanOptions options;
  options.memory = memory;
  options.seconds = seconds;
  options.layout = Layout::parse(layout);
  PlanModel model;
  model.name = "step";
  model.build = [&](const PlanBuild&) { return PlanStep{graph, functions}; };
  model.device = machine.device_type;
  return devices == 0 ? plan(model, Mesh::parse(mesh), machine, options)
                      : plan(model, devices, machine, options);
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Machine>(m, "Machine", "Measured or described hardware.")
      .def_static("load", &Machine::load, At(), nb::arg("name_or_path"),
                  "A shipped profile by name, or a TOML file as `tessera calibrate` writes it.")
      .def_static("names", &Machine::names, "The shipped profiles.")
      .def_static("calibrated_path", &Machine::calibrated_path)
      .def_ro("name", &Machine::name)
      .def_ro("device", &Machine::device)
      .def_ro("device_type", &Machine::device_type)
      .def_ro("memory", &Machine::memory);
  nb::class_<Plan>(m, "Plan", "The planner's answer: str() is the report.")
      .def("__str__", [](const Plan& p) { return to_string(p); })
      .def_prop_ro(
          "mesh", [](const Plan& p) { return p.best.mesh.to_string(); }, "For compile().")
      .def_prop_ro(
          "layout", [](const Plan& p) { return p.best.layout; }, "For compile().")
      .def_prop_ro(
          "seconds", [](const Plan& p) { return p.best.seconds; }, "Predicted, of a step.")
      .def_prop_ro(
          "memory", [](const Plan& p) { return p.best.memory(); }, "Predicted bytes of a rank.")
      .def_ro("bound", &Plan::bound, "No plan without scoped rules takes fewer seconds.")
      .def_ro("optimal", &Plan::optimal, "Whether no other plan is predicted to be faster.")
      .def_prop_ro(
          "plans",
          [](const Plan& p) {
            nb::list rows;
            rows.append(row_of(p.best));
            for (const PricedPlan& other : p.runners_up) rows.append(row_of(other));
            return rows;
          },
          "A dict for the best and each runner-up.");
  m.def("plan", &plan_for, Releasing(), nb::arg("graph"), nb::arg("functions"), nb::arg("mesh"),
        nb::arg("devices"), nb::arg("machine"), nb::arg("layout"), nb::arg("memory").none(),
        nb::arg("seconds"));
  nb::class_<Simulation>(m, "Simulation", "One step on a described machine. Times in seconds.")
      .def_ro("machine", &Simulation::machine)
      .def_ro("ranks", &Simulation::ranks)
      .def_ro("seconds", &Simulation::seconds, "compute + slowed + exposed + bubble.")
      .def_ro("compute", &Simulation::compute)
      .def_ro("slowed", &Simulation::slowed, "Of compute, by transfers beside it.")
      .def_ro("exposed", &Simulation::exposed, "Communication that compute does not hide.")
      .def_ro("bubble", &Simulation::bubble, "Of a pipeline: idle, while other stages work.")
      .def_ro("memory", &Simulation::memory, "Bytes of a rank.")
      .def_prop_ro(
          "steps",
          [](const Simulation& s) {
            nb::list rows;
            for (const SimulatedStep& step : s.steps) rows.append(row_of(step));
            return rows;
          },
          "A dict for each step of a rank.")
      .def(
          "trace", [](const Simulation& s) { return to_trace(s); },
          "A timeline for Perfetto, as JSON.")
      .def("__repr__", [](const Simulation& s) {
        return "Simulation(" + s.machine + ", " + std::to_string(s.ranks) +
               " ranks, seconds=" + std::to_string(s.seconds) + ")";
      });
  m.def(
      "simulate",
      [](const Graph& g, const CompileOptions& o, const Machine& machine) {
        SimulateOptions how;
        how.function = o.functions.at(0).name;
        return simulate(g, o, machine, how);
      },
      Releasing(), nb::arg("graph"), nb::arg("options"), nb::arg("machine"));
}

}  // namespace tessera::python
