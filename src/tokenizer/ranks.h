// Vocabularies of tiktoken: a token is its bytes, and its id is its rank.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tokenizer/pipeline.h"

namespace tessera {

/// The stages of a byte-level BPE whose merges follow from the ranks of tokens: two symbols merge
/// if their joined bytes are a token, and its rank is that of the merge. Ids are `first_id` + rank.
/// Throws an io error that begins with "[tokenizer] 'PATH'" unless all 256 bytes are tokens.
PipelineStages stages_of_ranks(const std::string& path,
                               const std::vector<std::pair<std::string, int32_t>>& ranks,
                               int32_t first_id, const std::string& pattern);

}  // namespace tessera
