// A text has `beams` rows, which go on with its likeliest beginnings. Each step looks at all tokens
// behind all of them and takes the best: those that end the text are finished, of the others the
// best `beams` go on, each in a row that takes over the cache of its beginning. As many candidates
// are taken as leave `beams` that go on if all that can end do. Rules for what counts as finished
// and for the end are those of transformers, so that both find the same texts.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/fail.h"
#include "generate/stepper.h"

namespace tessera {

namespace {

constexpr double kNever = -1e9;  ///< score of what is no beginning of a text

/// The beginnings of one request's text, and the texts that have ended.
class Beams {
 public:
  Beams(const BeamRequest& request, int64_t beams, int64_t vocabulary)
      : request_(request),
        beams_(static_cast<size_t>(beams)),
        vocabulary_(static_cast<size_t>(vocabulary)),
        scores_(beams_, kNever) {
    scores_[0] = 0;  // all rows begin alike: one of them counts
  }

  struct Step {
    size_t parent = 0;
    int32_t token = 0;
  };

  /// Takes the logits [beams, width] behind the beginnings `texts`, without prompts. Returns how
  /// the rows go on, or nothing if the search is over.
  std::vector<Step> advance(const float* logits, int64_t width,
                            const std::vector<std::vector<int32_t>>& texts) {
    const auto length = static_cast<double>(texts[0].size() + 1);
    const bool is_last = std::ssize(texts[0]) + 1 >= request_.max_tokens;
    const double divisor = std::pow(length, request_.length_penalty);
    std::vector<std::pair<double, Step>> going;
    const std::vector<std::pair<double, Step>> candidates = best_of(logits, width);
    const bool takes = !is_full() || !request_.early_stopping;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const auto& [score, step] = candidates[i];
      if (!is_last && !ends_with(step.token)) {
        going.emplace_back(score, step);
      } else if (i < beams_ && takes) {
        std::vector<int32_t> text = texts[step.parent];
        text.push_back(step.token);
        finished_.push_back({std::move(text), score / divisor});
      }
    }
    std::stable_sort(finished_.begin(), finished_.end(),
                     [](const BeamText& a, const BeamText& b) { return a.score > b.score; });
    if (finished_.size() > beams_) finished_.resize(beams_);
    const bool can_improve =
        !going.empty() && (!is_full() || going[0].first / divisor > finished_.back().score);
    if (!can_improve || (request_.early_stopping && is_full())) return {};
    std::vector<Step> steps;
    for (size_t b = 0; b < beams_; ++b) {
      // A small vocabulary may have fewer: the last beginning is repeated, and does not count.
      const auto& [score, step] = going[std::min(b, going.size() - 1)];
      scores_[b] = b < going.size() ? score : kNever;
      steps.push_back(step);
    }
    return steps;
  }

  /// The best texts that have ended.
  std::vector<BeamText> results() {
    finished_.resize(std::min(finished_.size(), static_cast<size_t>(request_.results)));
    return std::move(finished_);
  }

 private:
  bool is_full() const { return finished_.size() == beams_; }
  bool ends_with(int32_t token) const {
    return std::find(request_.ends.begin(), request_.ends.end(), token) != request_.ends.end();
  }

  /// The candidates with the highest log-probabilities, the best first.
  std::vector<std::pair<double, Step>> best_of(const float* logits, int64_t width) const {
    std::vector<double> all(beams_ * vocabulary_);
    for (size_t b = 0; b < beams_; ++b) {
      const float* row = logits + static_cast<int64_t>(b) * width;
      const double top = *std::max_element(row, row + width);
      double sum = 0;
      for (int64_t v = 0; v < width; ++v) sum += std::exp(row[v] - top);
      const double base = scores_[b] - top - std::log(sum);
      for (size_t v = 0; v < vocabulary_; ++v) all[b * vocabulary_ + v] = base + row[v];
    }
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const size_t kept = std::max<size_t>(2, 1 + request_.ends.size()) * beams_;
    const auto end = order.begin() + static_cast<int64_t>(std::min(kept, order.size()));
    std::partial_sort(order.begin(), end, order.end(), [&](size_t a, size_t b) {
      return all[a] != all[b] ? all[a] > all[b] : a < b;
    });
    std::vector<std::pair<double, Step>> best;
    for (auto it = order.begin(); it != end; ++it)
      best.emplace_back(all[*it], Step{*it / vocabulary_, static_cast<int32_t>(*it % vocabulary_)});
    return best;
  }

  const BeamRequest& request_;
  const size_t beams_, vocabulary_;
  std::vector<double> scores_;
  std::vector<BeamText> finished_;
};

void require_request(const Stepper& stepper, const BeamRequest& r, size_t number, Loc at) {
  stepper.require_prompt(r.prompt, r.max_tokens, number, at);
  TESSERA_REQUIRE(
      r.results >= 1 && r.results <= stepper.options().beams,
      "[generate] prompt {}: {} results of {} beams; there is at least 1, and at most all ({})",
      number, r.results, stepper.options().beams, where(at));
  TESSERA_REQUIRE(std::isfinite(r.length_penalty),
                  "[generate] prompt {}: length_penalty {}; it is finite ({})", number,
                  r.length_penalty, where(at));
}

/// The texts of a call of search().
class Searcher {
 public:
  Searcher(Stepper& stepper, const std::vector<BeamRequest>& requests, Loc at)
      : stepper_(stepper),
        requests_(requests),
        at_(at),
        beams_(stepper.options().beams),
        results_(requests.size()),
        parents_(static_cast<size_t>(stepper.rows())) {}

  std::vector<std::vector<BeamText>> search() {
    stepper_.clear();
    groups_.resize(parents_.size() / static_cast<size_t>(beams_));
    while (begin_texts()) {
      const Array logits = stepper_.step(false, at_);
      std::iota(parents_.begin(), parents_.end(), 0);
      bool moves = false;
      for (size_t g = 0; g < groups_.size(); ++g) moves |= advance(g, logits.data<float>());
      if (moves) stepper_.reorder(parents_, at_);
    }
    return std::move(results_);
  }

 private:
  /// The rows of a text.
  struct Group {
    std::optional<Beams> beams;      ///< none: the rows are free
    size_t request = 0, prompt = 0;  ///< its number; tokens before the new ones
  };

  int64_t first_row(size_t group) const { return static_cast<int64_t>(group) * beams_; }

  bool begin_texts() {
    bool busy = false;
    for (size_t g = 0; g < groups_.size(); ++g) {
      while (!groups_[g].beams && next_ < requests_.size()) {
        const size_t i = next_++;
        if (requests_[i].max_tokens == 0) continue;
        for (int64_t b = 0; b < beams_; ++b) stepper_.begin(first_row(g) + b, requests_[i].prompt);
        groups_[g].request = i;
        groups_[g].prompt = stepper_.row(first_row(g)).text.size();
        groups_[g].beams.emplace(requests_[i], beams_, stepper_.vocabulary());
      }
      busy |= groups_[g].beams.has_value();
    }
    return busy;
  }

  /// Extends the texts of a group that has read all tokens. Returns whether rows change places.
  bool advance(size_t g, const float* logits) {
    Group& group = groups_[g];
    const int64_t first = first_row(g), width = stepper_.model().vocab;
    if (!group.beams || !stepper_.row(first).is_read()) return false;
    std::vector<std::vector<int32_t>> texts;
    for (int64_t b = 0; b < beams_; ++b) {
      const std::vector<int32_t>& text = stepper_.row(first + b).text;
      texts.emplace_back(text.begin() + static_cast<int64_t>(group.prompt), text.end());
    }
    const std::vector<int32_t> text = stepper_.row(first).text;
    for (int64_t b = 0; b < beams_; ++b)
      require_numbers(logits + (first + b) * width, width, logit_of(group.request, text.size()),
                      at_);
    const std::vector<Beams::Step> steps =
        group.beams->advance(logits + first * width, width, texts);
    if (steps.empty()) {
      results_[group.request] = group.beams->results();
      group.beams.reset();
      for (int64_t b = 0; b < beams_; ++b) stepper_.row(first + b) = {};
      return false;
    }
    bool moves = false;
    for (int64_t b = 0; b < beams_; ++b) {
      const auto& [parent, token] = steps[static_cast<size_t>(b)];
      const int64_t from = first + static_cast<int64_t>(parent);
      parents_[static_cast<size_t>(first + b)] = static_cast<int32_t>(from);
      moves |= from != first + b;
      std::vector<int32_t>& row = stepper_.row(first + b).text;
      row.assign(text.begin(), text.begin() + static_cast<int64_t>(group.prompt));
      row.insert(row.end(), texts[parent].begin(), texts[parent].end());
      row.push_back(token);
    }
    return moves;
  }

  Stepper& stepper_;
  const std::vector<BeamRequest>& requests_;
  const Loc at_;
  const int64_t beams_;
  std::vector<std::vector<BeamText>> results_;
  std::vector<int32_t> parents_;
  std::vector<Group> groups_;
  size_t next_ = 0;
};

}  // namespace

std::vector<std::vector<BeamText>> Generator::search(const std::vector<BeamRequest>& requests,
                                                     Loc at) {
  TESSERA_REQUIRE(stepper_->options().beams > 0,
                  "[generate] search() needs rows for its beams; set GeneratorOptions::beams ({})",
                  where(at));
  for (size_t i = 0; i < requests.size(); ++i) require_request(*stepper_, requests[i], i, at);
  return Searcher(*stepper_, requests, at).search();
}

}  // namespace tessera
