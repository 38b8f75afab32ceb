// `serve`: the server's thread reads requests; this thread owns the ranks, and takes requests
// between two tokens, so that a text begins as soon as a row is free.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <sstream>

#include "base/fail.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/completions.h"
#include "cli/http_server.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/watchdog.h"
#include "cli/writing.h"

namespace tessera::cli {

namespace {

constexpr Ranks kThreads{"serve takes no ranks of a launcher"};

struct ServeFlags : WriterFlags {
  std::string host = "127.0.0.1", key_file;
  std::vector<std::string> origins;
  int64_t port = 8000, most_tokens = 65536;  ///< the latter of all prompts of a request
  void declare(FlagTable& table) {
    WriterFlags::declare(table);
    table.add(
        {{"--host ADDRESS", &host, kThreads,
          "Address to listen on (127.0.0.1, which other machines cannot reach)."},
         {"--port", &port, kThreads, "Port to listen on (8000). 0: a free one, which is printed.",
          whole_number(0, 65535)},
         {"--most-tokens", &most_tokens, kThreads,
          "Most tokens of a request, prompts and new ones together (65536).", whole_number(1)},
         {"--api-key-file FILE", &key_file, kThreads,
          "Keys, one a line: a request needs one of them as \"Authorization: Bearer KEY\"."},
         {"--origin ORIGIN", Each{&origins}, kThreads,
          "Web page that may send requests, such as https://example.org. Others are refused. May "
          "be given several times."}});
  }
};

constexpr int64_t kMostChoices = 5;    ///< as the API has it
constexpr int64_t kMostWaiting = 256;  ///< requests
constexpr std::chrono::milliseconds kPoll{50};

constexpr const char *kInvalid = "invalid_request_error", *kServer = "server_error";

using Exchange = std::shared_ptr<HttpExchange>;

/// Requests on their way from the server's thread to the ranks'.
class Waiting {
 public:
  struct Call {
    Exchange exchange;
    std::unique_ptr<Completion> completion;
  };
  /// False if too many wait.
  bool push(Call call) {
    const std::lock_guard lock(mutex_);
    if (std::ssize(calls_) >= kMostWaiting) return false;
    calls_.push_back(std::move(call));
    arrived_.notify_one();
    return true;
  }
  /// All that wait, after at most `most` if there is none.
  std::vector<Call> take(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, most, [&] { return !calls_.empty(); });
    return std::exchange(calls_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Call> calls_;
};

/// What a server has done, in Prometheus's text format.
class Metrics {
 public:
  std::atomic<int64_t> answered = 0, refused = 0, left = 0, read = 0, written = 0, running = 0,
                       waiting = 0;
  std::string text() const {
    std::string all;
    const auto add = [&](const char* name, const char* type, const char* help, int64_t value) {
      all += fmt::format("# HELP tessera_{0} {1}\n# TYPE tessera_{0} {2}\ntessera_{0} {3}\n", name,
                         help, type, value);
    };
    add("requests_answered_total", "counter", "Requests that were answered in full.", answered);
    add("requests_refused_total", "counter", "Requests that were refused.", refused);
    add("requests_left_total", "counter", "Requests whose client went away.", left);
    add("prompt_tokens_total", "counter", "Tokens of prompts.", read);
    add("generated_tokens_total", "counter", "Tokens that were written.", written);
    add("texts_running", "gauge", "Texts that have a row.", running);
    add("texts_waiting", "gauge", "Texts that wait for a row.", waiting);
    return all;
  }
};

/// Texts of requests, written beside each other.
class Writer {
 public:
  Writer(Generator& generator, Metrics& metrics, const std::atomic<bool>& stopping)
      : queue_(generator), metrics_(metrics), stopping_(stopping) {}

  bool is_idle() const { return calls_.empty(); }
  void add(Waiting::Call from) {
    const int64_t group = next_++;
    Call& call = calls_[group];
    call.exchange = std::move(from.exchange);
    call.completion = std::move(from.completion);
    try {
      const std::vector<GenerationRequest> requests = call.completion->requests(stopping_);
      for (size_t i = 0; i < requests.size(); ++i)
        texts_[call.numbers.emplace_back(queue_.add(requests[i], group))] = {group, i};
    } catch (const Error& e) {
      ++metrics_.refused;
      call.exchange->answer(400, http_error(e.what(), kInvalid));
      drop(calls_.find(group));
      return;
    }
    metrics_.read += call.completion->tokens_read();
    if (call.completion->streams()) call.exchange->begin_stream("text/event-stream");
  }
  /// Answers all requests with an error.
  void give_up(const std::string& why) {
    metrics_.refused += std::ssize(calls_);
    while (!calls_.empty()) {
      const auto call = calls_.begin();
      call->second.exchange->answer(500, http_error(why, kServer));
      drop(call);
    }
  }
  /// A token of each text that has a row.
  void step() {
    for (auto call = calls_.begin(); call != calls_.end();) {
      const auto at = call++;
      if (!at->second.exchange->is_client_gone()) continue;
      at->second.exchange->answer(499, http_error("the client is gone", kInvalid));
      ++metrics_.left;
      drop(at);
    }
    for (auto& [number, result] : queue_.step()) {
      const auto [group, i] = texts_.at(number);
      texts_.erase(number);
      calls_.at(group).completion->end(i, std::move(result));
    }
    metrics_.running = queue_.running();
    metrics_.waiting = queue_.waiting();
    for (auto call = calls_.begin(); call != calls_.end();) {
      const auto at = call++;
      deliver(at->second);
      if (at->second.completion->is_done()) drop(at);
    }
  }

 private:
  struct Call {
    Exchange exchange;
    std::unique_ptr<Completion> completion;
    std::vector<int64_t> numbers;  ///< of its texts
  };

  void deliver(const Call& call) {
    Completion& completion = *call.completion;
    const bool is_done = completion.is_done();
    if (is_done) {  // counted before the client knows
      ++metrics_.answered;
      metrics_.written += completion.tokens_written();
    }
    if (completion.streams()) {
      if (const std::string events = completion.events(); !events.empty())
        call.exchange->push(events);
      if (is_done) call.exchange->end_stream();
    } else if (is_done && stopping_) {
      call.exchange->answer(503, http_error("the server ends", kServer));
    } else if (is_done) {
      call.exchange->answer(
          200, completion.answer().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
  }
  void drop(std::map<int64_t, Call>::iterator call) {
    for (const int64_t number : call->second.numbers) {
      if (texts_.erase(number) > 0) queue_.drop(number);
    }
    calls_.erase(call);
  }

  TextQueue queue_;
  Metrics& metrics_;
  const std::atomic<bool>& stopping_;
  std::map<int64_t, Call> calls_;                        ///< by group
  std::map<int64_t, std::pair<int64_t, size_t>> texts_;  ///< by number: group, place in the call
  int64_t next_ = 0;
};

/// "localhost" of "http://localhost:8000", "localhost:8000" or "[::1]:8000".
std::string host_of(const std::string& text) {
  const size_t scheme = text.find("://");
  std::string host = scheme == text.npos ? text : text.substr(scheme + 3);
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find_first_of(":/"));
}

bool is_loopback(const std::string& host) {
  const bool is_number = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host.ends_with(".localhost") || host == "[::1]" || host == "::1" ||
         (host.starts_with("127.") && is_number);
}

/// Who may ask.
class Gate {
 public:
  explicit Gate(const ServeFlags& args)
      : is_local_(is_loopback(args.host)),
        has_keys_(!args.key_file.empty()),
        origins_(args.origins) {
    if (!has_keys_) return;
    std::istringstream lines(read_text_file("keys", args.key_file));
    for (std::string line; std::getline(lines, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty()) keys_.push_back(line);
    }
    TESSERA_REQUIRE(!keys_.empty(), "'{}' has no key; it has one a line", args.key_file);
  }

  /// Answers a request that may not be made. Web pages reach servers on loopback: by a name of
  /// their own that leads there (DNS rebinding), or by a request from another origin.
  bool refuses(const Exchange& x) const {
    const std::string host = host_of(x->header("Host")), origin = x->header("Origin");
    if (is_local_ && !host.empty() && !is_loopback(host))
      return refuse(x, 403,
                    fmt::format("the Host is '{}'; this server is asked as localhost", host));
    const bool own = is_local_ && is_loopback(host_of(origin));
    if (!origin.empty() && !own &&
        std::find(origins_.begin(), origins_.end(), origin) == origins_.end())
      return refuse(
          x, 403,
          fmt::format("pages of '{}' may not ask this server; allow them by --origin", origin));
    if (has_keys_ && x->path != "/health" && !has_key(x->header("Authorization")))
      return refuse(x, 401, "this server needs a key, as 'Authorization: Bearer KEY'");
    const std::string coding = x->header("Content-Encoding");
    if (!coding.empty() && coding != "identity")
      return refuse(x, 415, fmt::format("the body is in '{}'; send it as it is", coding));
    return false;
  }

 private:
  static bool refuse(const Exchange& x, int status, const std::string& why) {
    x->answer(status, http_error(why, kInvalid));
    return true;
  }
  bool has_key(const std::string& header) const {
    const std::string prefix = "Bearer ";
    if (!header.starts_with(prefix)) return false;
    bool found = false;
    for (const std::string& key : keys_) found |= is_equal(key, header.substr(prefix.size()));
    return found;
  }
  /// In a time that does not tell how much is equal.
  static bool is_equal(const std::string& key, const std::string& given) {
    unsigned different = key.size() != given.size();
    for (size_t i = 0; i < given.size(); ++i)
      different |= static_cast<unsigned char>(given[i] ^ key[i % key.size()]);
    return different == 0;
  }

  const bool is_local_, has_keys_;
  const std::vector<std::string> origins_;
  std::vector<std::string> keys_;
};

/// Requests by their paths.
class Routes {
 public:
  Routes(const ServeFlags& args, const ServedModel& model, Waiting& waiting, Metrics& metrics)
      : gate_(args), model_(model), waiting_(waiting), metrics_(metrics) {}

  /// Called on the server's thread.
  void take(const Exchange& x) {
    if (gate_.refuses(x)) {
      ++metrics_.refused;
    } else if (x->method == "POST" && x->path == "/v1/completions") {
      complete(x, CompletionKind::text);
    } else if (x->method == "POST" && x->path == "/v1/chat/completions") {
      complete(x, CompletionKind::chat);
    } else if (x->method == "GET" && x->path == "/v1/models") {
      const nlohmann::json model = {
          {"id", model_.name}, {"object", "model"}, {"owned_by", "tessera"}};
      x->answer(200, nlohmann::json{{"object", "list"}, {"data", {model}}}.dump());
    } else if (x->method == "GET" && x->path == "/health") {
      x->answer(200, R"({"status":"ok"})");
    } else if (x->method == "GET" && x->path == "/metrics") {
      x->answer(200, metrics_.text(), "text/plain; version=0.0.4");
    } else {
      ++metrics_.refused;
      x->answer(404, http_error(fmt::format("there is no {} {}; this server has POST "
                                            "/v1/completions, POST /v1/chat/completions, GET "
                                            "/v1/models, GET /health and GET /metrics",
                                            printable(x->method), printable(x->path)),
                                kInvalid));
    }
  }

 private:
  void complete(const Exchange& x, CompletionKind kind) {
    const auto refuse = [&](int status, const std::string& why, const char* type) {
      ++metrics_.refused;
      x->answer(status, http_error(why, type));
    };
    try {
      auto completion = std::make_unique<Completion>(x->body, model_, ++number_, kind);
      if (!waiting_.push({x, std::move(completion)}))
        refuse(503, fmt::format("{} requests wait already; ask again", kMostWaiting), kServer);
    } catch (const std::exception& e) {
      refuse(400, e.what(), kInvalid);
    }
  }

  const Gate gate_;
  const ServedModel& model_;
  Waiting& waiting_;
  Metrics& metrics_;
  int64_t number_ = 0;
};

/// The chat template of the folder that has the tokenizer, if it has one.
std::optional<ChatTemplate> chat_template_of(const ServeFlags& args, const Job& job,
                                             std::string& why) {
  const std::string& from = args.tokenizer.empty() ? args.model : args.tokenizer;
  why = fmt::format("'{}' is no folder with a tokenizer and a chat template", from);
  if (args.tokenizer.empty() && !job.folder) return {};
  try {
    return ChatTemplate::load(is_folder(from) ? from : folder_of(from));
  } catch (const Error& e) {
    why = e.what();
    return {};
  }
}

int run_serve(const ServeFlags& args, const std::vector<ModelSpec>& models) {
  TESSERA_REQUIRE(
      launched_ranks() <= 1,
      "serve runs in one process, whose ranks are threads; this one is one of {}, so start it "
      "without a launcher",
      launched_ranks());
  Job job = resolve(args, models, false);
  const std::vector<Checkpoint> all = checkpoints_to_read("serve", args.checkpoint, job);
  const nn::TransformerOptions options = writing_model(job, "serve");
  Cluster cluster = make_cluster(job, args);
  const Watchdog watchdog(cluster, args.timeout);
  const TextTokens vocabulary(args, args.model, job, options.vocab);
  const std::optional<int32_t> end = end_of_prompts(options);
  const int64_t choices = end ? 0 : std::min(kMostChoices, options.vocab);
  const std::unique_ptr<Generator> generator =
      make_generator(job, cluster, {args.rows, options.length, vocabulary.count(), choices});
  const Checkpoint loaded = load_parameters(job, args.model, all, *generator);
  ServedModel model{loaded.path,      vocabulary, options.length, options.vocab, choices,
                    args.most_tokens, end};
  const std::optional<ChatTemplate> chat = chat_template_of(args, job, model.why_no_chat);
  model.chat = chat ? &*chat : nullptr;
  std::atomic<bool> stopping = false;
  Waiting waiting;
  Metrics metrics;
  Routes routes(args, model, waiting, metrics);
  const StopSignals signals;
  Writer writer(*generator, metrics, stopping);
  HttpServer server(args.host, static_cast<int>(args.port), {},
                    [&](const Exchange& x) { routes.take(x); });
  say("serving {} on http://{}:{}/v1/completions\n", loaded.path, args.host, server.port());
  std::fflush(stdout);
  while (true) {
    stopping = signals.seen() != 0;
    if (stopping && writer.is_idle()) break;
    server.close_slow();
    for (Waiting::Call& call : waiting.take(writer.is_idle() ? kPoll : kPoll.zero())) {
      if (stopping)
        call.exchange->answer(503, http_error("the server ends", kServer));
      else
        writer.add(std::move(call));
    }
    try {
      if (!writer.is_idle()) writer.step();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::usage) throw;
      writer.give_up(e.what());  // logits that are no numbers
    }
  }
  say("{}: the server ends\n", signal_name(signals.seen()));
  return 0;
}

}  // namespace

Command serve_command() {
  return command(
      "serve", "Answers requests for completions over HTTP, as an OpenAI-compatible server.",
      "tessera serve gpt --checkpoint out/run\n"
      "  curl localhost:8000/v1/completions -d '{\"prompt\": \"Call me\", \"max_tokens\": 8}'",
      Processes::all, run_serve);
}

}  // namespace tessera::cli
