// Optimizers, and what a step minimizes.
#include "convert.h"

namespace tessera::python {

namespace {

using Handle = OptimizerHandle;

void bind_optimizers(nb::module_& m) {
  m.def(
      "sgd", [](double weight_decay) { return Handle{sgd(weight_decay)}; }, At(),
      nb::arg("weight_decay") = 0.0);
  m.def(
      "momentum", [](double mu, double weight_decay) { return Handle{momentum(mu, weight_decay)}; },
      At(), nb::arg("mu") = 0.9, nb::arg("weight_decay") = 0.0);
  m.def(
      "adam",
      [](double beta1, double beta2, double eps, double weight_decay,
         const std::vector<std::string>& no_decay, bool decoupled, bool decay_all) {
        AdamOptions o;
        o.beta1 = beta1;
        o.beta2 = beta2;
        o.eps = eps;
        o.weight_decay = weight_decay;
        o.no_decay = no_decay;
        o.decoupled = decoupled;
        o.decay_all = decay_all;
        return Handle{adam(o)};
      },
      At(), nb::arg("beta1") = 0.9, nb::arg("beta2") = 0.95, nb::arg("eps") = 1e-8,
      nb::arg("weight_decay") = 0.0, nb::arg("no_decay") = std::vector<std::string>{},
      nb::arg("decoupled") = true, nb::arg("decay_all") = false);
  m.def(
      "lamb",
      [](double beta1, double beta2, double eps, double weight_decay) {
        return Handle{lamb({beta1, beta2, eps, weight_decay})};
      },
      At(), nb::arg("beta1") = 0.9, nb::arg("beta2") = 0.999, nb::arg("eps") = 1e-6,
      nb::arg("weight_decay") = 0.0);
  m.def(
      "lion",
      [](double beta1, double beta2, double weight_decay) {
        return Handle{lion({beta1, beta2, weight_decay})};
      },
      At(), nb::arg("beta1") = 0.9, nb::arg("beta2") = 0.99, nb::arg("weight_decay") = 0.0);
  m.def(
      "adafactor", [] { return Handle{adafactor()}; }, At());
  m.def(
      "muon",
      [](const Handle& others, double mu, double weight_decay,
         const std::vector<std::string>& matrices, nb::handle rows) {
        MuonOptions o;
        o.mu = mu;
        o.weight_decay = weight_decay;
        o.matrices = matrices;
        o.rows = names_of(rows);
        return Handle{muon(o, others.function)};
      },
      At(), nb::arg("others"), nb::arg("mu") = 0.95, nb::arg("weight_decay") = 0.0,
      nb::arg("matrices") = std::vector<std::string>{"*block*"},
      nb::arg("rows") = std::vector<std::string>{"d_model"});
  m.def(
      "with_average",
      [](const Handle& optimizer, double decay) {
        return Handle{with_average(optimizer.function, decay)};
      },
      At());
}

MinimizeOptions options_of(double clip, const std::vector<std::string>& recompute,
                           const std::vector<std::string>& trainable) {
  MinimizeOptions o;
  o.clip = clip;
  o.gradient.recompute = recompute;
  o.trainable = trainable;
  return o;
}

}  // namespace

void bind_optim(nb::module_& m) {
  nb::class_<Handle>(m, "Optimizer");
  bind_optimizers(m);
  nb::class_<Minimized>(m, "Minimized", "The loss and the norm of its gradient.")
      .def_prop_ro("loss", [](const Minimized& made) { return made.loss; })
      .def_prop_ro("gradient_norm", [](const Minimized& made) { return made.gradient_norm; })
      .def_prop_ro("gradients", [](const Minimized& made) { return made.gradients; });
  m.def(
      "minimize",
      [](const Tensor& loss, const Tensor& lr, const Handle& optimizer, double clip,
         const std::vector<std::string>& recompute, const std::vector<std::string>& trainable) {
        return minimize(loss, lr, optimizer.function, options_of(clip, recompute, trainable));
      },
      At());
  m.def(
      "minimize_in_microbatches",
      [](Graph& g, nb::handle dim, int64_t parts, const std::function<Tensor()>& loss,
         const Tensor& lr, const Handle& optimizer, double clip,
         const std::vector<std::string>& recompute, const std::vector<std::string>& trainable) {
        return minimize_in_microbatches(
            g, name_of(dim), parts, [&] { return Loss(loss()); }, lr, optimizer.function,
            options_of(clip, recompute, trainable));
      },
      At());
  nb::class_<Schedule>(m, "Schedule", "The learning rate of a step, from 0.")
      .def(
          "__init__",
          [](Schedule* self, const std::string& kind, double lr, int64_t warmup, int64_t steps,
             double floor, double cooldown) {
            auto* s = new (self) Schedule();
            s->kind = kind;
            s->lr = lr;
            s->warmup = warmup;
            s->steps = steps;
            s->floor = floor;
            s->cooldown = cooldown;
            s->at(0);  // throws what is wrong with it
          },
          At(), nb::arg("kind") = "cosine", nb::arg("lr") = 1e-3, nb::arg("warmup") = 0,
          nb::arg("steps") = 1, nb::arg("floor") = 0.1, nb::arg("cooldown") = 0.0)
      .def("at", &Schedule::at, At(), nb::arg("step"));
}

}  // namespace tessera::python
