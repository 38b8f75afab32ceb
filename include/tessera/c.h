// Tessera for C, and for languages that call C: opens a model, compiles it for a mesh and a layout,
// feeds, runs, fetches, saves. Link libtessera.so (tessera::c in CMake); it exports nothing else.
//
//   tessera_model* model;
//   tessera_session* session;
//   const char* settings[] = {"model.layers=2", "train.batch=8"};
//   if (tessera_open("gpt", settings, 2, &model) ||
//       tessera_compile(model, TESSERA_TRAIN, "data:2", "batch:data", "cpu", &session))
//     puts(tessera_error());
//
// Every function that can fail returns TESSERA_OK, or the kind of the failure, whose message
// tessera_error() is. The caller frees what it got: handles by their functions, tensors by their
// deleter. A session is used by one thread at a time. Collective functions are called by every
// process of a launcher. Texts are UTF-8 that ends in a zero; texts that are returned live as long
// as their handle.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tessera/dlpack_structs.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TESSERA_C __attribute__((visibility("default")))

typedef enum {
  TESSERA_OK = 0,
  TESSERA_USAGE = 1,        ///< the caller's input is wrong; nothing was changed
  TESSERA_UNSUPPORTED = 2,  ///< a legal request that this build or device cannot serve
  TESSERA_DEVICE = 3,       ///< a device or a kernel failed
  TESSERA_COMM = 4,         ///< a peer died, hung or disagrees; the session is unusable
  TESSERA_IO = 5,           ///< a file could not be read or written
  TESSERA_INTERNAL = 6      ///< a bug in Tessera: please report it
} tessera_status;

typedef struct tessera_model tessera_model;
typedef struct tessera_session tessera_session;

/// The version of the library: "0.1.0".
TESSERA_C const char* tessera_version(void);
/// The message of the last call of this thread that failed; "" before.
TESSERA_C const char* tessera_error(void);
/// The line that messages of this thread's next call name. The macros below call it, unless
/// TESSERA_NO_LINES is defined.
TESSERA_C void tessera_at(const char* file, int line);

/// Opens a model as the command line names it: a built-in one ("gpt"), a .toml file, or a folder of
/// Hugging Face with config.json. `settings` are `count` texts key=value, as for --set; `tessera
/// info --keys` lists the keys. Local.
TESSERA_C tessera_status tessera_open(const char* model, const char* const* settings, size_t count,
                                      tessera_model** opened);
TESSERA_C void tessera_close(tessera_model* model);

typedef enum {
  /// A run is a training step. Outputs: the mean loss, the norm of its gradient.
  TESSERA_TRAIN = 0,
  /// A run changes nothing. Outputs: the mean loss; the logits where there are; and where the loss
  /// is a mean by weight, as over the tokens that count, its weight: the last name.
  TESSERA_EVAL = 1
} tessera_purpose;

/// Compiles the model for the ranks of `mesh` ("data:2;model:2"), laid out as `layout` says. NULL:
/// as the settings say, else by those of the model's rules that the mesh has axes for. Ranks are
/// processes under mpirun or srun, else threads. `device`: "cpu", "cuda" or "auto". Parameters get
/// the weights of a folder, else random values of train.seed. Inputs have train.batch examples. The
/// model may be closed at once. Collective.
TESSERA_C tessera_status tessera_compile(const tessera_model* model, tessera_purpose purpose,
                                         const char* mesh, const char* layout, const char* device,
                                         tessera_session** compiled);
TESSERA_C void tessera_free(tessera_session* session);

typedef enum { TESSERA_INPUTS = 0, TESSERA_OUTPUTS = 1, TESSERA_STORED = 2 } tessera_role;
/// The names of the inputs to feed, of the outputs of a run, or of parameters and optimizer state.
/// Local.
TESSERA_C tessera_status tessera_names(const tessera_session* session, tessera_role role,
                                       const char* const** names, size_t* count);

#define TESSERA_MOST_DIMS 16
typedef struct {
  DLDataType dtype;
  int32_t ndim;
  int64_t sizes[TESSERA_MOST_DIMS];
  const char* dims[TESSERA_MOST_DIMS];  ///< names; valid until the next call
} tessera_type;
/// The dtype and dims of a whole tensor. Local.
TESSERA_C tessera_status tessera_type_of(tessera_session* session, const char* name,
                                         tessera_type* type);

/// The value of an input for the next runs, whole and equal in every process, in host memory, with
/// any strides. It is read during the call only. Local.
TESSERA_C tessera_status tessera_feed(tessera_session* session, const char* input,
                                      const DLTensor* whole);
/// One step. Training feeds the learning rate of the settings' schedule. Collective.
TESSERA_C tessera_status tessera_run(tessera_session* session);
/// An output of the last run, a parameter or a state, whole, in host memory. The caller calls its
/// deleter. Collective.
TESSERA_C tessera_status tessera_fetch(tessera_session* session, const char* name,
                                       DLManagedTensor** whole);
/// fetch of a tensor of one element. Collective.
TESSERA_C tessera_status tessera_fetch_scalar(tessera_session* session, const char* name,
                                              double* value);
/// The number of steps made. Local.
TESSERA_C tessera_status tessera_step(const tessera_session* session, int64_t* step);

/// Saves parameters, state and step as directory/step-N, whole or not at all, and keeps the newest
/// `keep` checkpoints, this one included. Collective.
TESSERA_C tessera_status tessera_save(tessera_session* session, const char* directory, int keep);
/// Loads a checkpoint of any mesh and layout: a step-N, or the newest one of a directory. Loads
/// what the session has: in TESSERA_EVAL the parameters. A usage error names the settings of the
/// model that differ from the checkpoint's. TESSERA_EVAL may have another model.length,
/// model.dropout, model.loss_blocks and model.init. Collective.
TESSERA_C tessera_status tessera_load(tessera_session* session, const char* path);
/// Every step that a rank runs, as text. Local.
TESSERA_C tessera_status tessera_program(tessera_session* session, const char** text);

#ifdef __cplusplus
}
#endif

#ifndef TESSERA_NO_LINES
#define TESSERA_HERE(call) (tessera_at(__FILE__, __LINE__), call)
#define tessera_open(...) TESSERA_HERE((tessera_open)(__VA_ARGS__))
#define tessera_compile(...) TESSERA_HERE((tessera_compile)(__VA_ARGS__))
#define tessera_names(...) TESSERA_HERE((tessera_names)(__VA_ARGS__))
#define tessera_type_of(...) TESSERA_HERE((tessera_type_of)(__VA_ARGS__))
#define tessera_feed(...) TESSERA_HERE((tessera_feed)(__VA_ARGS__))
#define tessera_run(...) TESSERA_HERE((tessera_run)(__VA_ARGS__))
#define tessera_fetch(...) TESSERA_HERE((tessera_fetch)(__VA_ARGS__))
#define tessera_fetch_scalar(...) TESSERA_HERE((tessera_fetch_scalar)(__VA_ARGS__))
#define tessera_step(...) TESSERA_HERE((tessera_step)(__VA_ARGS__))
#define tessera_save(...) TESSERA_HERE((tessera_save)(__VA_ARGS__))
#define tessera_load(...) TESSERA_HERE((tessera_load)(__VA_ARGS__))
#define tessera_program(...) TESSERA_HERE((tessera_program)(__VA_ARGS__))
#endif
