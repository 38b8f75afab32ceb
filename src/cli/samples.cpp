#include "cli/samples.h"

#include <algorithm>

#include "base/fail.h"
#include "cli/text_stream.h"
#include "cli/writing.h"

namespace tessera::cli {

namespace {

constexpr int64_t kSampleTokens = 64, kRows = 8;

nn::TransformerOptions options_of(const Job& job) { return writing_model(job, "--sample-every"); }

}  // namespace

void SampleFlags::declare(FlagTable& table) {
  table.add(
      kSeeingHeading,
      {{"--sample-every", &sample_every, kAgree,
        "Writes a text after every so many steps, and after the last (0: none). It goes to the "
        "log, TensorBoard and the report.",
        whole_number(0)},
       {"--sample-prompt TEXT", Each{&prompts}, kAgree,
        "Text that a sample continues. May be given several times.", any_text()}});
  SamplingFlags::declare(table, kSampleTokens);
  TokenizerFlags::declare(table);
}

Samples::Samples(const SampleFlags& args, const std::string& model, const Job& job,
                 Cluster& cluster)
    : job_(job),
      cluster_(cluster),
      vocabulary_(args, model, job, options_of(job).vocab),
      prompts_(args.prompts.empty() ? std::vector<std::string>{""} : args.prompts),
      end_(end_of_prompts(options_of(job))) {
  const int64_t length = options_of(job).length;
  for (const std::string& prompt : prompts_) {
    GenerationRequest request;
    request.prompt = vocabulary_.of_prompt(prompt);
    if (end_) request.prompt.push_back(*end_);
    // What an encoder reads takes no room of the text, but the token that starts it does.
    const int64_t size = std::ssize(request.prompt), left = length - (end_ ? 1 : size);
    TESSERA_REQUIRE(
        left >= 1 && size <= length,
        "the --sample-prompt '{}' has {} tokens, and the model's length is {}; shorten it", prompt,
        request.prompt.size(), length);
    request.max_tokens = std::min(args.tokens.value_or(kSampleTokens), left);
    request.sampling = args.sampling;
    request.sampling.seed = static_cast<uint64_t>(job.config.integer("train.seed"));
    requests_.push_back(std::move(request));
  }
}

std::vector<std::pair<std::string, std::string>> Samples::write(Session& trained) {
  if (!generator_) {
    WritingOptions o{std::min(kRows, std::ssize(requests_)), 0, vocabulary_.count()};
    for (const GenerationRequest& r : requests_)
      o.context = std::max(o.context, end_ ? std::max(std::ssize(r.prompt), r.max_tokens + 1)
                                           : std::ssize(r.prompt) + r.max_tokens);
    generator_ = make_generator(job_, cluster_, o);
  }
  for (const std::string& name : generator_->parameters())
    generator_->session().copy_from(trained, name);
  std::vector<std::unique_ptr<TextStream>> streams;
  std::vector<GenerationRequest> requests = requests_;
  for (size_t i = 0; i < requests.size(); ++i) {
    streams.push_back(std::make_unique<TextStream>(
        vocabulary_, end_ ? std::vector<int32_t>() : requests[i].prompt,
        !end_ && !prompts_[i].empty(), std::vector<std::string>{}));
    requests[i].on_token = [stream = streams[i].get(), end = end_](int32_t token) {
      return token != end && stream->push(token);
    };
  }
  generator_->run(requests);
  std::vector<std::pair<std::string, std::string>> texts;
  for (size_t i = 0; i < requests.size(); ++i) {
    streams[i]->finish();
    texts.emplace_back(prompts_[i], streams[i]->text());
  }
  return texts;
}

}  // namespace tessera::cli
