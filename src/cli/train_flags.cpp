// The flags of train.
#include "cli/training.h"

namespace tessera::cli {

void SavingFlags::declare(FlagTable& table) {
  table.add(
      kCheckpointsHeading,
      {{"--checkpoint DIR", &checkpoint, kAgree, "Directory of checkpoints."},
       {"--save-every", &save_every, kAgree,
        "Number of steps between checkpoints. One is always written at the end."},
       {"--save-retry SECONDS", &save_retry, kAgree,
        "How long a job that ends tries a failed save again, in seconds (60). While it trains it "
        "always does."},
       {"--keep", &keep, kAgree, "Number of checkpoints to keep (3).", whole_number(1, kMostKept)},
       {"--keep-best", &keep_best, kAgree,
        "Also keeps the checkpoint with the lowest evaluation loss, in DIR/best."},
       {"--staging BYTES", &staging, kAgree,
        "Most memory that a process takes to save while it trains, such as 4GB (1 GiB)."},
       {"--resume", &resume, kAgree, "Continues from the last checkpoint."},
       {"--allow-changes", &allow_changes, kAgree,
        "With --resume: continues although model, optimizer, batch, seed or data have changed."}});
}

int64_t SavingFlags::most_staging() const {
  if (checkpoint.empty()) return 0;
  return staging.empty() ? Checkpoints::kStaging : parse_bytes("--staging", staging);
}

void TrainFlags::declare(FlagTable& table) {
  ModelFlags::declare(table);
  table.add(kModelHeading, {data_flag(keys), init_flag(keys)});
  table.add(
      kTrainingHeading,
      {{"--steps N", SetsKey{&sets, "train.steps"}, kIsKey, "Number of steps to train."},
       batch_flag(sets),
       dtype_flag(sets, "Dtype of activations: float32, bfloat16, float16, float64 or float8."),
       {"--seed N", SetsKey{&sets, "train.seed"}, kIsKey,
        "Seed of initial values, dropout and the order of data."},
       {"--on-nonfinite stop|skip", &on_nonfinite, kAgree,
        "What happens at a step whose loss or gradient is not finite: stop (default), or skip it "
        "and count."},
       {"--check-replicas N", &check_replicas, kAgree,
        "Number of steps between comparisons of the ranks' copies of parameters (0: never; by "
        "default as many as keep their cost below 0.1 % of the time)."}});
  table.add(
      kMeshHeading,
      {{"--overlap on|off", SetsKey{&sets, "train.overlap"}, kIsKey,
        "Whether communication overlaps compute (on). With off a rank waits for every collective "
        "where it starts."},
       {"--chunks N|auto", SetsKey{&sets, "train.chunks"}, kIsKey,
        "Number of chunks a matmul is split into so that its collective overlaps its compute, and "
        "of parts of a rank's tokens whose rows travel to experts in turn."},
       {"--tune K", &tune, kAgree,
        "Tries the K best plans of a layout with auto for a few steps each, and trains with the "
        "fastest."}});
  table.add(kMemoryHeading, {{"--offload none|state", SetsKey{&sets, "train.offload"}, kIsKey,
                              "Keeps optimizer state in host memory, with state."},
                             recompute_flag(sets)});
  table.add(
      kSeeingHeading,
      {{"--log FILE", &files.log, kAgree, "Writes JSON lines to FILE, one a step."},
       {"--quiet", &quiet, kOfRoot,
        "Prints only what goes wrong, what other flags ask for, and the summary."},
       {"--csv FILE", &files.csv, kOfRoot, "Writes the numbers of the log to FILE, as a table."},
       {"--tensorboard DIR", &files.tensorboard, kOfRoot, "Folder of event files for TensorBoard."},
       {"--profile", &profile, kAgree,
        "Prints at the end time, memory, FLOP/s and bytes/s by op and source line, and what "
        "each collective exposed, beside what is predicted. If the machine is known "
        "(--machine), each kernel stands against its roofline, the one that loses most time "
        "first."}});
  WatchFlags::declare(table);
  table.add(
      kSeeingHeading,
      {{"--trace FILE", &trace, kAgree,
        "Writes when each step ran on each rank to FILE, for Perfetto or chrome://tracing."}});
  SavingFlags::declare(table);
  SampleFlags::declare(table);
  JsonFlag::declare(table);
}

}  // namespace tessera::cli
