// The log of a training job (docs/reference/log-fields.md), read back.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera::pages {
class Page;
}

namespace tessera::cli {

/// Something that happened between steps.
struct RunEvent {
  int64_t step = 0;
  std::string kind;  ///< "resumed", "spike", "rollback", "slow rank" or "save"
  std::string text;  ///< more about it; may be empty
};

/// Of steps that ran twice the last record counts.
struct RunLog {
  std::string name;  ///< the path; of a later job in the same file with its number
  nlohmann::json head, startup, profile, time_line, kernels, buckets;
  nlohmann::json code = nlohmann::json::object();  ///< as for pages::Page::code()
  std::map<std::string, size_t> fields;            ///< of steps: index of the numbers below
  std::map<int64_t, std::vector<double>> steps;    ///< numbers by field; shorter: not given
  std::map<int64_t, nlohmann::json> evaluations, saves, samples;
  std::vector<RunEvent> events;
  int64_t last = 0;   ///< steps in all, as the last record says; 0: not said
  bool cut = false;   ///< the last line is incomplete: the job was killed while writing it
  int64_t torn = 0;   ///< number of other incomplete lines
  int64_t again = 0;  ///< steps up to this one may come twice: the job was resumed or rolled back
  std::map<int64_t, int64_t> told_slow;  ///< by rank: the last step at which it was called slow
  int64_t back = 0;  ///< steps that came before the one in front of them, without a reason

  /// A field by step; NAN where it is not given.
  std::vector<double> column(const std::string& field) const;
  std::vector<double> step_numbers() const;
};

/// The jobs of a log: one, or several one behind the other. Throws an io error that names `path` if
/// it is no log of a training job.
std::vector<RunLog> read_run_logs(const std::string& text, const std::string& path);

/// A number of a record; NAN if there is none.
double number_of(const nlohmann::json& record, const char* field);

/// A count of a record (steps, bytes); 0 if there is none, or none that a job can have.
int64_t count_of(const nlohmann::json& record, const char* field);

/// Adds the charts of what jobs logged by step, in the same colours for all.
void add_curves(pages::Page& page, const std::vector<RunLog>& logs);

/// Adds the measured step by cause, a bar for each job, and how the others differ from the first.
/// Waits are told by axes where all jobs can.
void add_steps(pages::Page& page, const std::vector<RunLog>& logs);
/// Adds which rank was slowest, and by how much, over stretches of steps: a cell is the mean over
/// the steps of its stretch, 0 in those in which another rank was the slowest. `which`: the number
/// of the job if there are several, else "".
void add_ranks(pages::Page& page, const RunLog& log, const std::string& which);
/// (name, number of ranks) of each host, in order of rank; none if the head of a log does not say.
std::vector<std::pair<std::string, int64_t>> hosts_of(const nlohmann::json& head);

}  // namespace tessera::cli
