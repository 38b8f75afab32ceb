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
                                 const int32_t* tokens) {
  const char* settings[] = {"model.layers=1", "model.d_model=16", "model.heads=2", "model.ff=32",
                            "model.length=8", "train.batch=4",    "train.lr=0.01"};
  tessera_model* model;
  tessera_session* session;
  DO(tessera_open("gpt", settings, sizeof(settings) / sizeof(settings[0]), &model));
  DO(tessera_compile(model, purpose, mesh, layout, "cpu", &session));
  tessera_close(model);
  feed(session, "inputs", tokens);
  feed(session, "targets", tokens + 1);
  return session;
}

static double run(tessera_session* session) {
  const char* const* outputs;
  size_t count;
  double loss;
  DO(tessera_run(session));
  DO(tessera_names(session, TESSERA_OUTPUTS, &outputs, &count));
  MUST(count == 2);
  DO(tessera_fetch_scalar(session, outputs[0], &loss));
  return loss;
}

int main(void) {
  int32_t tokens[BATCH * LENGTH + 1];
  for (int i = 0; i <= BATCH * LENGTH; ++i) tokens[i] = i * i % 7;
  printf("tessera %s\n", tessera_version());

  tessera_session* train = compiled(TESSERA_TRAIN, "data:2", "batch:data", tokens);
  const double first = run(train);
  double last = first;
  for (int step = 1; step < 20; ++step) last = run(train);
  printf("loss %.4f -> %.4f\n", first, last);
  MUST(last < first - 0.5);
  int64_t step;
  DO(tessera_step(train, &step));
  MUST(step == 20);
  DO(tessera_save(train, "checkpoints", 2));
  const double next = run(train);
  tessera_free(train);

  /* The loss of the next step is that of the saved parameters, on any mesh. */
  tessera_session* eval = compiled(TESSERA_EVAL, "model:2", "heads,ff,vocab:model", tokens);
  DO(tessera_load(eval, "checkpoints"));
  const double loss = run(eval);
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
  tessera_free(eval);
  return 0;
}
