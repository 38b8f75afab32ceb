/* Uses the C interface of what was installed: trains, saves, and reads the checkpoint on another
 * mesh. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/c.h>

#define BATCH 4
#define LENGTH 8

static void must(int ok, int line) {
  if (ok) return;
  fprintf(stderr, "main.c:%d failed; the last error: %s\n", line, tessera_error());
  exit(1);
}
#define MUST(condition) must(condition, __LINE__)
#define DO(call) MUST((call) == TESSERA_OK)

static void feed(tessera_session* session, const char* name, const int32_t* tokens) {
  int64_t sizes[2] = {LENGTH, BATCH}, strides[2] = {1, LENGTH};
  DLTensor tensor = {(void*)tokens, {kDLCPU, 0}, 2, {kDLInt, 32, 1}, sizes, strides, 0};
  MUST(tessera_feed(session, name, &tensor) == TESSERA_USAGE); /* its dims the other way round */
  sizes[0] = BATCH, sizes[1] = LENGTH, strides[0] = LENGTH, strides[1] = 1;
  DO(tessera_feed(session, name, &tensor));
}

static tessera_session* compiled(tessera_purpose purpose, const char* mesh, const char* layout,
                                 const int32_t* tokens, const char* setting) {
  const char* settings[] = {"model.layers=1", "model.d_model=16", "model.heads=2", "model.ff=32",
                            "model.length=8", "train.batch=4",    "train.lr=0.01", setting};
  tessera_model* model;
  tessera_session* session;
  DO(tessera_open("gpt", settings, sizeof(settings) / sizeof(settings[0]), &model));
  DO(tessera_compile(model, purpose, mesh, layout, "cpu", &session));
  tessera_close(model);
  feed(session, "inputs", tokens);
  feed(session, "targets", tokens + 1);
  return session;
}

static double run(tessera_session* session, size_t expected) {
  const char* const* outputs;
  size_t count;
  double loss;
  DO(tessera_run(session));
  DO(tessera_names(session, TESSERA_OUTPUTS, &outputs, &count));
  MUST(count == expected);
  DO(tessera_fetch_scalar(session, outputs[0], &loss));
  return loss;
}

/* The loss of a model whose tokens have weights is a mean: it does not depend on their scale. */
static void weighted(const int32_t* tokens) {
  tessera_session* session =
      compiled(TESSERA_EVAL, "data:2", "batch:data", tokens, "data.packed=true");
  int32_t segments[BATCH * LENGTH], positions[BATCH * LENGTH];
  float weights[BATCH * LENGTH];
  int64_t sizes[2] = {BATCH, LENGTH};
  for (int i = 0; i < BATCH * LENGTH; ++i) segments[i] = 1, positions[i] = i % LENGTH;
  DLTensor whole = {segments, {kDLCPU, 0}, 2, {kDLInt, 32, 1}, sizes, NULL, 0};
  DO(tessera_feed(session, "segments", &whole));
  whole.data = positions;
  DO(tessera_feed(session, "positions", &whole));
  whole.data = weights, whole.dtype.code = kDLFloat;
  double losses[2];
  for (int scale = 1; scale <= 2; ++scale) {
    for (int i = 0; i < BATCH * LENGTH; ++i) weights[i] = (float)scale;
    DO(tessera_feed(session, "weights", &whole));
    losses[scale - 1] = run(session, 3);
    const char* const* names;
    size_t count;
    double weight;
    DO(tessera_names(session, TESSERA_OUTPUTS, &names, &count));
    DO(tessera_fetch_scalar(session, names[2], &weight));
    MUST(fabs(weight - scale * BATCH * LENGTH) < 1e-3);
    tessera_type type;
    DO(tessera_type_of(session, names[1], &type));
    MUST(type.ndim == 3);
  }
  MUST(losses[0] > 0 && losses[0] < 10 && fabs(losses[0] - losses[1]) < 1e-4);
  tessera_free(session);
}

/* What is no purpose, role, list of settings or mesh is refused, in the line of the call. */
static void refused(void) {
  tessera_model* model;
  tessera_session* session;
  MUST(tessera_open("gpt", NULL, 1, &model) == TESSERA_USAGE);
  MUST(strstr(tessera_error(), "settings is NULL and count is 1") != NULL);
  DO(tessera_open("gpt", NULL, 0, &model));
  MUST(tessera_compile(model, (tessera_purpose)7, "data:1", NULL, "cpu", &session) ==
       TESSERA_USAGE);
  MUST(strstr(tessera_error(), "the purpose is 7") != NULL);
  /* More ranks than a process takes as threads. */
  MUST(tessera_compile(model, TESSERA_TRAIN, "data:1000000", NULL, "cpu", &session) ==
       TESSERA_USAGE);
  MUST(strstr(tessera_error(), "1000000 ranks") != NULL);
  tessera_close(model);
  int64_t step;
  char expected[64];
  MUST(tessera_step(NULL, &step) == TESSERA_USAGE);
  snprintf(expected, sizeof(expected), "(main.c:%d)", __LINE__ - 1);
  MUST(strstr(tessera_error(), expected) != NULL);
  const char* program;
  MUST(tessera_program(NULL, &program) == TESSERA_USAGE);
  snprintf(expected, sizeof(expected), "(main.c:%d)", __LINE__ - 1);
  MUST(strstr(tessera_error(), expected) != NULL);
}

int main(void) {
  int32_t tokens[BATCH * LENGTH + 1];
  for (int i = 0; i <= BATCH * LENGTH; ++i) tokens[i] = i * i % 7;
  printf("tessera %s\n", tessera_version());

  tessera_session* train =
      compiled(TESSERA_TRAIN, "data:2", "batch:data", tokens, "model.dropout=0");
  const double first = run(train, 2);
  double last = first;
  for (int step = 1; step < 20; ++step) last = run(train, 2);
  printf("loss %.4f -> %.4f\n", first, last);
  MUST(last < first - 0.5);
  int64_t step;
  DO(tessera_step(train, &step));
  MUST(step == 20);
  DO(tessera_save(train, "checkpoints", 2));
  DO(tessera_save(train, "kept", 3));
  const double next = run(train, 2);
  DO(tessera_save(train, "kept", 1)); /* the number of this call */
  MUST(tessera_load(train, "kept/step-00000020") == TESSERA_IO);
  DO(tessera_load(train, "kept/step-00000021"));
  tessera_free(train);

  /* The loss of the next step is that of the saved parameters, on any mesh. */
  tessera_session* eval = compiled(TESSERA_EVAL, "model:2", NULL, tokens, "model.dropout=0.5");
  DO(tessera_load(eval, "checkpoints"));
  const double loss = run(eval, 2);
  MUST(fabs(loss - next) < 1e-4);
  const char* const* names;
  size_t count;
  DO(tessera_names(eval, TESSERA_OUTPUTS, &names, &count));
  const char* logits = names[1];
  tessera_type type;
  DO(tessera_type_of(eval, logits, &type));
  MUST(type.ndim == 3 && type.sizes[0] == BATCH && strcmp(type.dims[0], "batch") == 0);
  MUST(type.dtype.code == kDLFloat && type.dtype.bits == 32);
  DLManagedTensor* whole;
  DO(tessera_fetch(eval, logits, &whole));
  MUST(whole->dl_tensor.shape[1] == LENGTH && isfinite(((float*)whole->dl_tensor.data)[0]));
  whole->deleter(whole);
  const char* program;
  DO(tessera_program(eval, &program));
  MUST(strstr(program, "all_reduce") != NULL);

  /* A checkpoint of another model is refused, also where the parameters that are there fit. */
  tessera_session* lora =
      compiled(TESSERA_EVAL, "data:1", "batch:data", tokens, "model.lora_rank=2");
  DO(tessera_save(lora, "lora", 1));
  tessera_free(lora);
  MUST(tessera_load(eval, "lora") == TESSERA_USAGE);
  MUST(strstr(tessera_error(), "model.lora_rank was '2' and is '0'") != NULL);

  weighted(tokens);
  refused();

  /* Errors have a kind and a message that names the line of C. */
  tessera_model* model;
  MUST(tessera_open("gtp", NULL, 0, &model) == TESSERA_USAGE);
  char expected[64];
  snprintf(expected, sizeof(expected), "did you mean 'gpt'? (main.c:%d)", __LINE__ - 2);
  MUST(strstr(tessera_error(), expected) != NULL);
  MUST(tessera_fetch(eval, "logit", &whole) == TESSERA_USAGE);
  snprintf(expected, sizeof(expected), "(main.c:%d)", __LINE__ - 1);
  MUST(strstr(tessera_error(), expected) != NULL);
  MUST(tessera_load(eval, "nowhere") == TESSERA_IO);
  MUST(tessera_run(NULL) == TESSERA_USAGE && strstr(tessera_error(), "session is NULL") != NULL);
  DLTensor on_gpu = {tokens, {kDLCUDA, 0}, 0, {kDLInt, 32, 1}, NULL, NULL, 0};
  MUST(tessera_feed(eval, "inputs", &on_gpu) == TESSERA_UNSUPPORTED);
  DLTensor no_shape = {tokens, {kDLCPU, 0}, 2, {kDLInt, 32, 1}, NULL, NULL, 0};
  MUST(tessera_feed(eval, "inputs", &no_shape) == TESSERA_USAGE);
  no_shape.ndim = -1;
  MUST(tessera_feed(eval, "inputs", &no_shape) == TESSERA_USAGE);
  MUST(tessera_names(eval, (tessera_role)9, &names, &count) == TESSERA_USAGE);
  MUST(strstr(tessera_error(), "the role is 9") != NULL);
  tessera_free(eval);
  return 0;
}
