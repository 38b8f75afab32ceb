// `serve`: threads of the HTTP library read requests and wait; this thread owns the ranks and takes
// all requests that wait at once, so that their texts share the rows of a batch.
#include "base/fail.h"
#include "base/threads.h"
#include "cli/commands.h"

namespace tessera::cli {

namespace {

constexpr Ranks kThreads{"serve takes no ranks of a launcher"};

struct ServeFlags : WriterFlags {
  std::string host = "127.0.0.1";
  int64_t port = 8000, most_tokens = 65536;  ///< the latter of all prompts of a request
  void declare(FlagTable& table) {
    WriterFlags::declare(table);
    table.add(
        {{"--host ADDRESS", &host, kThreads,
          "Address to listen on (127.0.0.1, which other machines cannot reach)."},
         {"--port", &port, kThreads, "Port to listen on (8000). 0: a free one, which is printed.",
          whole_number(0, 65535)},
         {"--most-tokens", &most_tokens, kThreads,
          "Most tokens of a request, prompts and new ones together (65536).", whole_number(1)}});
  }
};

int run_serve(const ServeFlags& args, const std::vector<ModelSpec>& models);

}  // namespace

Command serve_command() {
  return command(
      "serve", "Answers requests for completions over HTTP, as an OpenAI-compatible server.",
      "tessera serve gpt --checkpoint out/run\n"
      "  curl localhost:8000/v1/completions -d '{\"prompt\": \"Call me\", \"max_tokens\": 8}'",
      Processes::all, run_serve);
}

}  // namespace tessera::cli

#ifndef TESSERA_HAVE_HTTPLIB

namespace tessera::cli {
namespace {
int run_serve(const ServeFlags&, const std::vector<ModelSpec>&) {
  fail(ErrorKind::unsupported,
       "this build has no HTTP library, and serve needs one; install libcpp-httplib-dev and "
       "configure again");
}
}  // namespace
std::string http_library() { return "no: tessera serve needs cpp-httplib"; }
}  // namespace tessera::cli

#else

#include <httplib.h>
#include <sys/socket.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "cli/completions.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/watchdog.h"
#include "cli/writing.h"

namespace tessera::cli {

namespace {

constexpr size_t kMostBodyBytes = size_t{16} << 20;  ///< of a request's body
constexpr int64_t kMostChoices = 5;                  ///< as the API has it
constexpr std::chrono::milliseconds kPoll{50};

constexpr const char *kInvalid = "invalid_request_error", *kServer = "server_error";

/// Calls that wait for the ranks.
class Waiting {
 public:
  struct Call {
    std::vector<GenerationRequest> requests;
    std::promise<std::vector<Generation> > results;
  };
  /// Called by threads of the HTTP library.
  std::vector<Generation> run(std::vector<GenerationRequest> requests) {
    Call call{std::move(requests), {}};
    std::future<std::vector<Generation> > results = call.results.get_future();
    {
      const std::lock_guard lock(mutex_);
      TESSERA_REQUIRE(!closed_, "the server ends");
      calls_.push_back(&call);
    }
    arrived_.notify_one();
    return results.get();
  }
  /// All calls that wait, after at most `most` if there is none.
  std::vector<Call*> take(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, most, [&] { return !calls_.empty(); });
    return std::exchange(calls_, {});
  }
  /// Calls that wait now or later fail.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (Call* call : calls_)
      call->results.set_exception(
          std::make_exception_ptr(Error(ErrorKind::usage, "the server ends")));
    calls_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Call*> calls_;
  bool closed_ = false;
};

/// Runs all calls together and gives each its results. An error that the next run does not have is
/// the calls' own.
void run_together(Generator& generator, const std::vector<Waiting::Call*>& calls) {
  std::vector<GenerationRequest> all;
  for (const Waiting::Call* call : calls)
    all.insert(all.end(), call->requests.begin(), call->requests.end());
  try {
    std::vector<Generation> results = generator.run(all);
    auto from = results.begin();
    for (Waiting::Call* call : calls) {
      const auto end = from + std::ssize(call->requests);
      call->results.set_value({std::make_move_iterator(from), std::make_move_iterator(end)});
      from = end;
    }
  } catch (const Error& e) {
    for (Waiting::Call* call : calls) call->results.set_exception(std::current_exception());
    if (e.kind() != ErrorKind::usage) throw;
  }
}

class HttpServer {
 public:
  HttpServer(const ServeFlags& args, const ServedModel& model, Waiting& waiting,
             const std::atomic<bool>& stopping)
      : model_(model), waiting_(waiting), stopping_(stopping) {
    server_.set_payload_max_length(kMostBodyBytes);
    // The library's own choice lets a second server take the same port.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.Post("/v1/completions",
                 [this](const httplib::Request& q, httplib::Response& r) { complete(q, r); });
    server_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& r) {
      answer(r, 200,
             {{"object", "list"},
              {"data", {{{"id", model_.name}, {"object", "model"}, {"owned_by", "tessera"}}}}});
    });
    server_.Get("/health", [](const httplib::Request&, httplib::Response& r) {
      answer(r, 200, {{"status", "ok"}});
    });
    server_.set_error_handler([](const httplib::Request& q, httplib::Response& r) {
      if (r.body.empty()) answer(r, r.status, error_body(reason(q, r.status), kInvalid));
    });
    const int port = static_cast<int>(args.port);
    port_ = port == 0                               ? server_.bind_to_any_port(args.host)
            : server_.bind_to_port(args.host, port) ? port
                                                    : -1;
    if (port_ < 0)
      fail(ErrorKind::io,
           "cannot listen on {}:{}: another server has the port, or the address is not of this "
           "machine; choose another --port, or 0 for a free one",
           args.host, port);
    thread_ = start_thread("the HTTP server", [this] {
      server_.listen_after_bind();
      over_ = true;
    });
  }
  ~HttpServer() {
    // stop() does nothing to a server that does not run yet.
    while (!server_.is_running() && !over_) std::this_thread::yield();
    server_.stop();
    thread_.join();
  }
  int port() const { return port_; }

 private:
  static void answer(httplib::Response& response, int status, const nlohmann::json& body) {
    response.status = status;
    response.set_content(body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                         "application/json");
  }
  static std::string reason(const httplib::Request& request, int status) {
    if (status == 413)
      return fmt::format("the body has more than the {} bytes that this server takes",
                         kMostBodyBytes);
    if (status == 404)
      return fmt::format(
          "there is no {} {}; this server has POST /v1/completions, GET /v1/models "
          "and GET /health",
          request.method, request.path);
    return fmt::format("the request cannot be read (HTTP status {})", status);
  }

  void complete(const httplib::Request& request, httplib::Response& response) {
    const int64_t number = ++number_;
    try {
      Completion completion(request.body, model_, static_cast<uint64_t>(number));
      try {
        const std::vector<Generation> results = waiting_.run(completion.requests(stopping_));
        TESSERA_REQUIRE(!stopping_, "the server ends");
        answer(response, 200, completion.answer(results, number));
      } catch (const std::exception& e) {
        answer(response, 503, error_body(e.what(), kServer));
      }
    } catch (const std::exception& e) {
      answer(response, 400, error_body(e.what(), kInvalid));
    }
  }

  const ServedModel& model_;
  Waiting& waiting_;
  const std::atomic<bool>& stopping_;
  std::atomic<int64_t> number_ = 0;
  std::atomic<bool> over_ = false;
  httplib::Server server_;
  int port_ = -1;
  std::thread thread_;
};

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
  const ServedModel model{loaded.path,      vocabulary, options.length, options.vocab, choices,
                          args.most_tokens, end};
  std::atomic<bool> stopping = false;
  Waiting waiting;
  const StopSignals signals;
  HttpServer server(args, model, waiting, stopping);
  say("serving {} on http://{}:{}/v1/completions\n", loaded.path, args.host, server.port());
  std::fflush(stdout);
  // A signal also ends texts that are being written.
  std::thread listener = start_thread("signals", [&] {
    for (; !stopping; std::this_thread::sleep_for(kPoll)) stopping = signals.seen() != 0;
  });
  const auto close = [&] {
    stopping = true;
    listener.join();
    waiting.close();
  };
  try {
    while (!stopping) {
      const std::vector<Waiting::Call*> calls = waiting.take(kPoll);
      if (!calls.empty()) run_together(*generator, calls);
    }
  } catch (...) {
    close();
    throw;
  }
  close();
  say("{}: the server ends\n", signal_name(signals.seen()));
  return 0;
}

}  // namespace

std::string http_library() { return "cpp-httplib " CPPHTTPLIB_VERSION; }

}  // namespace tessera::cli

#endif
