// The lines of a jsonl file for supervised fine-tuning, which several sources of examples read.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "tessera/tokenizer.h"

namespace tessera {

/// Calls visit(sample, "'PATH' line N") for each line that is not blank. Throws an io error for one
/// that is no JSON object.
void for_each_sample(
    const std::string& path,
    const std::function<void(const nlohmann::json& sample, const std::string& where)>& visit);
/// The text of a key. Throws an io error that says what a sample is.
const std::string& sample_text(const nlohmann::json& sample, const char* key,
                               const std::string& where);
/// Throws an io error for a key of `what` that is not one of `used` and would be dropped, such as a
/// field that a chat template could show, or a weight. A sample may say where it comes from ("id",
/// "source").
void require_keys(const nlohmann::json& of, const std::set<std::string>& used, const char* what,
                  const std::string& where);
/// The tokenizer. Throws a usage error if it does not fit a vocabulary; 0: any fits.
Tokenizer load_fitting_tokenizer(const std::string& path, int64_t vocabulary);
/// The samples from the share `first` to `last` of `count`. Throws an io error if there are none.
std::pair<int64_t, int64_t> part_of_samples(const std::string& path, int64_t count,
                                            int64_t left_out, double first, double last);

}  // namespace tessera
