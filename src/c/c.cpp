// The C interface: a job of the command line, held by handles. Names, settings and files mean what
// they mean there.
#define TESSERA_NO_LINES
#include "tessera/c.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fail.h"
#include "base/thrown.h"
#include "cli/build_model.h"
#include "cli/commands.h"
#include "tessera/build_info.h"
#include "tessera/caller.h"
#include "tessera/interop/dlpack.h"

using namespace tessera;

struct tessera_model {
  cli::Job job;
};

struct tessera_session {
  cli::Job job;
  tessera_purpose purpose;
  cli::Trainer trainer = {};
  std::vector<std::string> inputs = {}, outputs = {}, stored = {};
  std::vector<std::vector<const char*>> names = {};  // of the three above
  std::string program = {};
  Cluster cluster;
  std::unique_ptr<Session> session = {};
  struct Saving {
    int keep = 0;
    std::unique_ptr<Checkpoints> checkpoints = {};
  };
  std::map<std::string, Saving> saving = {};  // by directory
};

namespace {

struct Line {
  std::string file = "caller of C";
  int line = 0;
};
thread_local std::string last_error;
thread_local std::optional<Line> next_line;
thread_local std::vector<std::string> described_dims;

tessera_status status_of(ErrorKind kind) {
  return static_cast<tessera_status>(static_cast<int>(kind) + 1);
}

/// Runs one call. Nothing is thrown into C.
template <class Work>
tessera_status call(const char* name, const Work& work) {
  const Line line = next_line.value_or(Line());
  next_line.reset();
  const CallerScope scope(line.file, line.line);
  try {
    work();
    return TESSERA_OK;
  } catch (const Error& e) {
    last_error = in_name_of(name, Loc::current(), e).what();
    return status_of(e.kind());
  } catch (...) {
    last_error = thrown_text();
    return TESSERA_INTERNAL;
  }
}

const char* given(const char* text, const char* what) {
  TESSERA_REQUIRE(text != nullptr, "{} is NULL", what);
  return text;
}

template <class Handle>
Handle* given(Handle* handle, const char* what) {
  TESSERA_REQUIRE(handle != nullptr, "{} is NULL", what);
  return handle;
}

/// The loss as a mean: over the weight, where there is one. A weight of 0 has the mean 0.
Tensor mean_loss(const nn::Model& model) {
  if (model.weight.empty()) return model.loss;
  const DType type = model.loss.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const auto exact = [&](Tensor t) { return t.dtype() == type ? t : cast(t, type); };
  const Tensor weight = exact(model.weight);
  return (exact(model.loss) / where(equal(weight, 0.0), 1.0, weight)).uniquely_named("mean_loss");
}

/// The job without dropout, which is for training.
cli::Job evaluated(cli::Job job) {
  for (const ConfigKey& key : job.spec->keys) {
    if (key.name == "model.dropout") job.config.set(key.name, "0");
  }
  return job;
}

/// A graph that only evaluates: the loss, and the logits and the loss's weight where there are.
void build_evaluation(tessera_session& s) {
  cli::Trainer& t = s.trainer;
  cli::store_parameters(s.job.config, t.graph);
  t.model = cli::build_model(evaluated(s.job), t.graph, s.job.config.integer("train.batch"), false);
  cli::require_purposes(t.graph, s.job.layout);
  t.functions = {{"eval", {mean_loss(t.model)}, false}};
  for (const Tensor& more : {t.model.logits, t.model.weight}) {
    if (!more.empty()) t.functions[0].outputs.push_back(more);
  }
}

void compile(tessera_session& s) {
  cli::Trainer& t = s.trainer;
  if (s.purpose == TESSERA_TRAIN) {
    cli::build_trainer(s.job, t, false);
  } else {
    build_evaluation(s);
  }
  s.session = std::make_unique<Session>(t.graph, s.cluster, cli::options_of(s.job, t));
  cli::start_parameters(s.job, *s.session);
  for (const Tensor& input : t.model.inputs) s.inputs.push_back(input.name());
  for (const Tensor& output : t.functions[0].outputs) s.outputs.push_back(output.name());
  s.stored = s.session->program().stored_names();
  for (const auto* all : {&s.inputs, &s.outputs, &s.stored}) {
    s.names.emplace_back();
    for (const std::string& name : *all) s.names.back().push_back(name.c_str());
  }
}

}  // namespace

const char* tessera_version() {
  static const std::string version = build_info().version;
  return version.c_str();
}

const char* tessera_error() { return last_error.c_str(); }

void tessera_at(const char* file, int line) { next_line = Line{file, line}; }

tessera_status tessera_open(const char* model, const char* const* settings, size_t count,
                            tessera_model** opened) {
  return call("tessera_open", [&] {
    given(opened, "opened");
    cli::ModelFlags args;
    args.model = given(model, "model");
    TESSERA_REQUIRE(
        settings != nullptr || count == 0,
        "settings is NULL and count is {}; give as many texts key=value, or the count 0", count);
    for (size_t i = 0; i < count; ++i) args.sets.emplace_back(given(settings[i], "a setting"));
    *opened = new tessera_model{cli::resolve_without_plan(args, builtin_models())};
  });
}

void tessera_close(tessera_model* model) { delete model; }

tessera_status tessera_compile(const tessera_model* model, tessera_purpose purpose,
                               const char* mesh, const char* layout, const char* device,
                               tessera_session** compiled) {
  return call("tessera_compile", [&] {
    given(compiled, "compiled");
    TESSERA_REQUIRE(purpose == TESSERA_TRAIN || purpose == TESSERA_EVAL,
                    "the purpose is {}; give TESSERA_TRAIN ({}) or TESSERA_EVAL ({})",
                    static_cast<int>(purpose), static_cast<int>(TESSERA_TRAIN),
                    static_cast<int>(TESSERA_EVAL));
    cli::Job job = given(model, "model")->job;
    job.device = given(device, "device");
    if (mesh != nullptr) job.mesh = Mesh::parse(mesh);
    if (layout != nullptr) {
      job.layout = Layout::parse(layout);
    } else if (!job.given.contains("layout.rules")) {
      job.layout = cli::default_layout(job);  // of this mesh, not of the settings'
    }
    job.config.set("layout.mesh", job.mesh.to_string());
    job.config.set("layout.rules", job.layout.to_string());
    // Made first: GCC 12 frees members twice if a later one of the same initializer throws.
    Cluster cluster = cli::make_cluster(job, cli::JobFlags());
    std::unique_ptr<tessera_session> s(new tessera_session{
        .job = std::move(job), .purpose = purpose, .cluster = std::move(cluster)});
    compile(*s);
    *compiled = s.release();
  });
}

void tessera_free(tessera_session* session) {
  if (session == nullptr) return;
  session->saving.clear();
  session->session.reset();
  delete session;
}

tessera_status tessera_names(const tessera_session* session, tessera_role role,
                             const char* const** names, size_t* count) {
  return call("tessera_names", [&] {
    given(session, "session");
    const int number = static_cast<int>(role);
    TESSERA_REQUIRE(
        number >= TESSERA_INPUTS && number <= TESSERA_STORED,
        "the role is {}; give TESSERA_INPUTS ({}), TESSERA_OUTPUTS ({}) or TESSERA_STORED ({})",
        number, static_cast<int>(TESSERA_INPUTS), static_cast<int>(TESSERA_OUTPUTS),
        static_cast<int>(TESSERA_STORED));
    const std::vector<const char*>& all = session->names[static_cast<size_t>(number)];
    *given(names, "names") = all.data();
    *given(count, "count") = all.size();
  });
}

tessera_status tessera_type_of(tessera_session* session, const char* name, tessera_type* type) {
  return call("tessera_type_of", [&] {
    const Array shape = given(session, "session")->session->shape_of(given(name, "name"));
    TESSERA_REQUIRE(shape.sizes.size() <= TESSERA_MOST_DIMS, "'{}' has {} dims, more than {}", name,
                    shape.sizes.size(), TESSERA_MOST_DIMS);
    *given(type, "type") = {};
    type->dtype = dlpack_detail::type_of(shape.dtype);
    type->ndim = static_cast<int32_t>(shape.sizes.size());
    described_dims = shape.dims;
    for (size_t d = 0; d < shape.sizes.size(); ++d) {
      type->sizes[d] = shape.sizes[d];
      type->dims[d] = described_dims[d].c_str();
    }
  });
}

tessera_status tessera_feed(tessera_session* session, const char* input, const DLTensor* whole) {
  return call("tessera_feed", [&] {
    given(session, "session")
        ->session->feed(given(input, "input"), from_dlpack(*given(whole, "whole")));
  });
}

tessera_status tessera_run(tessera_session* session) {
  return call("tessera_run", [&] {
    given(session, "session");
    const cli::Trainer& t = session->trainer;
    if (session->purpose == TESSERA_TRAIN)
      cli::feed_scalar(*session->session, t.lr,
                       cli::learning_rate(session->job, session->session->step()));
    session->session->run(t.functions[0].name);
  });
}

tessera_status tessera_fetch(tessera_session* session, const char* name, DLManagedTensor** whole) {
  return call("tessera_fetch", [&] {
    given(whole, "whole");
    *whole = to_dlpack(given(session, "session")->session->fetch(given(name, "name")));
  });
}

tessera_status tessera_fetch_scalar(tessera_session* session, const char* name, double* value) {
  return call("tessera_fetch_scalar", [&] {
    *given(value, "value") = given(session, "session")->session->fetch_scalar(given(name, "name"));
  });
}

tessera_status tessera_step(const tessera_session* session, int64_t* step) {
  return call("tessera_step",
              [&] { *given(step, "step") = given(session, "session")->session->step(); });
}

tessera_status tessera_save(tessera_session* session, const char* directory, int keep) {
  return call("tessera_save", [&] {
    tessera_session::Saving& saving =
        given(session, "session")->saving[given(directory, "directory")];
    if (!saving.checkpoints || saving.keep != keep) {
      saving.checkpoints.reset();  // it holds the directory's lock
      saving.checkpoints = std::make_unique<Checkpoints>(session->cluster, directory, keep);
      saving.keep = keep;
    }
    saving.checkpoints->save(*session->session, session->session->step(),
                             {{"config", session->job.config.to_toml()}});
  });
}

tessera_status tessera_load(tessera_session* session, const char* path) {
  return call("tessera_load", [&] {
    Session& s = *given(session, "session")->session;
    const std::optional<Checkpoint> latest = find_latest(given(path, "path"));
    if (!latest) fail(ErrorKind::io, "'{}' holds no checkpoint", path);
    if (session->purpose == TESSERA_TRAIN) {
      cli::require_stored_model(session->job, *latest, {});
      load_checkpoint(s, latest->path);
    } else {
      cli::require_stored_model(
          session->job, *latest,
          {"model.dropout", "model.init", "model.length", "model.loss_blocks"});
      load_tensors(s, latest->path, session->stored);
    }
  });
}

tessera_status tessera_program(tessera_session* session, const char** text) {
  return call("tessera_program", [&] {
    std::string& program = given(session, "session")->program;
    if (program.empty()) program = session->session->program().text();
    *given(text, "text") = program.c_str();
  });
}
