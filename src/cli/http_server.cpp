// A connection whose answer is not there yet is suspended: it costs no thread and no time. Whoever
// gives the answer, or a piece of it, resumes it, and the library calls for what there is.
#include "cli/http_server.h"

#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/thrown.h"

namespace tessera::cli {

std::string http_error(const std::string& message, const char* type) {
  const nlohmann::json body = {
      {"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tessera::cli

#ifndef TESSERA_HAVE_MICROHTTPD

namespace tessera::cli {

struct HttpServer::State {};
HttpServer::HttpServer(const std::string&, int, const HttpLimits&, HttpHandler) {
  fail(ErrorKind::unsupported,
       "this build has no HTTP library, and serve needs one; install libmicrohttpd-dev and "
       "configure again");
}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return 0; }
void HttpServer::close_slow() {}
std::string http_library() { return "no: tessera serve needs libmicrohttpd"; }

}  // namespace tessera::cli

#else

#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace tessera::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 128;
constexpr std::chrono::seconds kPatience{2};  ///< at the end, for clients to take their answers
constexpr int kContentTooLarge = 413;         ///< the library has two names for it

/// A connection: since when it is without a whole request.
struct Connection {
  int socket = -1;
  Clock::time_point since = Clock::now();
  bool has_request = false;
};

}  // namespace

/// What the threads share.
struct HttpServer::State {
  class Exchange;

  State(const HttpLimits& of, HttpHandler by) : limits(of), handler(std::move(by)) {}

  const HttpLimits limits;
  const HttpHandler handler;
  MHD_Daemon* daemon = nullptr;
  int port = 0;
  std::mutex mutex;
  std::set<Connection*> connections;
  std::set<Exchange*> exchanges;
  bool ends = false;             ///< whoever answers does so no more
  std::condition_variable left;  ///< there are fewer exchanges
  size_t bodies = 0;             ///< bytes of the bodies of `exchanges`

  /// Whether a connection has a whole request that is not answered yet.
  void note(MHD_Connection* connection, bool has_request) {
    const std::lock_guard lock(mutex);
    auto* const context = static_cast<Connection*>(
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context);
    if (context == nullptr) return;
    context->has_request = has_request;
    context->since = Clock::now();
  }
  static MHD_Result on_request(void* self, MHD_Connection* connection, const char* url,
                               const char* method, const char*, const char* data, size_t* bytes,
                               void** exchange);
  static void on_completed(void* self, MHD_Connection* connection, void** exchange,
                           MHD_RequestTerminationCode);
  static void on_connection(void* self, MHD_Connection* connection, void** context,
                            MHD_ConnectionNotificationCode code);
};

class HttpServer::State::Exchange final : public HttpExchange {
 public:
  Exchange(State& server, MHD_Connection* connection, const char* url, const char* verb)
      : server_(server),
        connection_(connection),
        socket_(
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd) {
    method = verb;
    path = url;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, &keep_header, this);
  }

  std::string header(const char* name) const override {
    const auto at = headers_.find(lower(name));
    return at == headers_.end() ? "" : at->second;
  }
  void answer(int status, std::string text, const char* type) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
    type_ = type;
    ready_ = std::move(text);
    ended_ = true;
    resume();
  }
  void begin_stream(const char* type) override {
    const std::lock_guard lock(mutex_);
    status_ = MHD_HTTP_OK;
    type_ = type;
    is_stream_ = true;
    resume();
  }
  void push(const std::string& piece) override {
    const std::lock_guard lock(mutex_);
    ready_ += piece;
    resume();
  }
  void end_stream() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    resume();
  }
  bool is_client_gone() override {
    const std::lock_guard lock(mutex_);
    if (connection_ == nullptr) return true;
    char byte = 0;
    const ssize_t n = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  /// On the server's thread: gives the library the answer, or suspends the connection.
  MHD_Result reply() {
    const std::lock_guard lock(mutex_);
    if (status_ == 0) return suspend(), MHD_YES;
    MHD_Response* const response =
        is_stream_
            ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, size_t{1} << 14, &next_piece,
                                                this, nullptr)
            : MHD_create_response_from_buffer(ready_.size(), ready_.data(), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type_.c_str());
    if (is_stream_) MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    if (status_ == MHD_HTTP_UNAUTHORIZED)
      MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    const MHD_Result result =
        MHD_queue_response(connection_, static_cast<unsigned>(status_), response);
    MHD_destroy_response(response);
    return result;
  }
  /// The connection is no more.
  void leave() {
    const std::lock_guard lock(mutex_);
    connection_ = nullptr;
  }
  /// Says that the server ends, unless there is an answer, which then ends.
  void end() {
    const std::lock_guard lock(mutex_);
    if (status_ == 0) {
      status_ = MHD_HTTP_SERVICE_UNAVAILABLE;
      type_ = "application/json";
      ready_ = http_error("the server ends", "server_error");
    }
    ended_ = true;
    resume();
  }

  bool is_read = false;  ///< the whole request; of the server's thread
  size_t dropped = 0;    ///< bytes of the body beyond the limit
  std::shared_ptr<Exchange> self;

 private:
  static std::string lower(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
  }
  static MHD_Result keep_header(void* to, MHD_ValueKind, const char* key, const char* value) {
    static_cast<Exchange*>(to)->headers_[lower(key)] = value == nullptr ? "" : value;
    return MHD_YES;
  }
  static ssize_t next_piece(void* from, uint64_t, char* to, size_t room) {
    Exchange& x = *static_cast<Exchange*>(from);
    const std::lock_guard lock(x.mutex_);
    const size_t n = std::min(room, x.ready_.size());
    std::memcpy(to, x.ready_.data(), n);
    x.ready_.erase(0, n);
    if (n > 0) return static_cast<ssize_t>(n);
    if (x.ended_) return MHD_CONTENT_READER_END_OF_STREAM;
    x.suspend();
    return 0;
  }
  void suspend() {
    suspended_ = true;
    MHD_suspend_connection(connection_);
  }
  void resume() {
    if (!std::exchange(suspended_, false) || connection_ == nullptr) return;
    MHD_resume_connection(connection_);
  }

  State& server_;
  std::mutex mutex_;
  MHD_Connection* connection_;
  const int socket_;
  std::map<std::string, std::string> headers_;
  int status_ = 0;  ///< 0: there is no answer yet
  std::string type_, ready_;
  bool is_stream_ = false, ended_ = false, suspended_ = false;
};

MHD_Result HttpServer::State::on_request(void* self, MHD_Connection* connection, const char* url,
                                         const char* method, const char*, const char* data,
                                         size_t* bytes, void** at) {
  State& server = *static_cast<State*>(self);
  const HttpLimits& limits = server.limits;
  if (*at == nullptr) {
    const auto made = std::make_shared<Exchange>(server, connection, url, method);
    made->self = made;
    *at = made.get();
    const std::lock_guard lock(server.mutex);
    server.exchanges.insert(made.get());
    return MHD_YES;
  }
  Exchange& exchange = *static_cast<Exchange*>(*at);
  if (*bytes > 0) {
    const size_t n = std::exchange(*bytes, 0);
    const std::lock_guard lock(server.mutex);
    const bool fits = exchange.dropped == 0 && exchange.body.size() + n <= limits.body &&
                      server.bodies + n <= limits.bodies;
    if (fits) {
      exchange.body.append(data, n);
      server.bodies += n;
      return MHD_YES;
    }
    exchange.dropped += n;  // the answer may come only behind the body
    return exchange.dropped <= limits.body ? MHD_YES : MHD_NO;
  }
  if (!std::exchange(exchange.is_read, true)) {
    server.note(connection, /*has_request=*/true);
    bool ends = false;
    {
      const std::lock_guard lock(server.mutex);
      ends = server.ends;
    }
    if (ends) {
      exchange.end();
    } else if (exchange.dropped > 0) {
      exchange.answer(
          kContentTooLarge,
          http_error(fmt::format("the body has more than the {} bytes that this server takes, or "
                                 "all bodies at once more than {}",
                                 limits.body, limits.bodies),
                     "invalid_request_error"),
          "application/json");
    } else {
      try {
        server.handler(exchange.self);
      } catch (...) {  // no exception passes through the library
        exchange.answer(MHD_HTTP_INTERNAL_SERVER_ERROR, http_error(thrown_text(), "server_error"),
                        "application/json");
      }
    }
  }
  return exchange.reply();
}

void HttpServer::State::on_completed(void* self, MHD_Connection* connection, void** at,
                                     MHD_RequestTerminationCode) {
  State& server = *static_cast<State*>(self);
  auto* const exchange = static_cast<Exchange*>(*at);
  if (exchange == nullptr) return;
  *at = nullptr;
  exchange->leave();
  server.note(connection, /*has_request=*/false);
  std::shared_ptr<Exchange> last;  // ends without the lock
  const std::lock_guard lock(server.mutex);
  server.bodies -= exchange->body.size();
  server.exchanges.erase(exchange);
  server.left.notify_all();
  last.swap(exchange->self);
}

void HttpServer::State::on_connection(void* self, MHD_Connection* connection, void** context,
                                      MHD_ConnectionNotificationCode code) {
  State& server = *static_cast<State*>(self);
  const std::lock_guard lock(server.mutex);
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    auto* const made = new Connection;
    made->socket =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    *context = made;
    server.connections.insert(made);
  } else if (auto* const ended = static_cast<Connection*>(*context); ended != nullptr) {
    server.connections.erase(ended);
    delete ended;
    *context = nullptr;
  }
}

namespace {

/// A socket that listens. Throws an io error.
int listen_on(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  std::string why;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = gai_strerror(error);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int s = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    const int yes = 1;
    if (s >= 0 && setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        bind(s, at->ai_addr, at->ai_addrlen) == 0 && listen(s, kBacklog) == 0)
      return s;
    why = std::strerror(errno);
    if (s >= 0) close(s);
  }
  fail(ErrorKind::io,
       "cannot listen on {}:{} ({}): another server has the port, or the address is not of this "
       "machine; choose another --port, or 0 for a free one",
       host, port, why);
}

int port_of(int s) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(s, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits,
                       HttpHandler handler)
    : state_(std::make_unique<State>(limits, std::move(handler))) {
  const int s = listen_on(host, port);
  state_->port = port_of(s);
  state_->daemon = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr,
      &State::on_request, state_.get(), MHD_OPTION_LISTEN_SOCKET, s, MHD_OPTION_NOTIFY_COMPLETED,
      &State::on_completed, state_.get(), MHD_OPTION_NOTIFY_CONNECTION, &State::on_connection,
      state_.get(), MHD_OPTION_CONNECTION_MEMORY_LIMIT, limits.headers, MHD_OPTION_CONNECTION_LIMIT,
      static_cast<unsigned>(limits.connections), MHD_OPTION_PER_IP_CONNECTION_LIMIT,
      static_cast<unsigned>(limits.of_address), MHD_OPTION_CONNECTION_TIMEOUT,
      static_cast<unsigned>(limits.idle_seconds), MHD_OPTION_END);
  if (state_->daemon != nullptr) return;
  close(s);
  fail(ErrorKind::io, "cannot start the HTTP server: {}", std::strerror(errno));
}

HttpServer::~HttpServer() {
  close(MHD_quiesce_daemon(state_->daemon));
  std::vector<std::shared_ptr<State::Exchange> > open;
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;  // an open connection may bring one more request
    for (State::Exchange* x : state_->exchanges) open.push_back(x->self);
  }
  for (const auto& exchange : open) exchange->end();
  open.clear();
  std::unique_lock lock(state_->mutex);  // answers are on their way
  state_->left.wait_for(lock, kPatience, [&] { return state_->exchanges.empty(); });
  lock.unlock();
  MHD_stop_daemon(state_->daemon);
}

int HttpServer::port() const { return state_->port; }

void HttpServer::close_slow() {
  const std::lock_guard lock(state_->mutex);
  const auto before = Clock::now() - std::chrono::seconds(state_->limits.request_seconds);
  for (const Connection* connection : state_->connections) {
    if (!connection->has_request && connection->since < before)
      shutdown(connection->socket, SHUT_RDWR);
  }
}

std::string http_library() { return std::string("libmicrohttpd ") + MHD_get_version(); }

}  // namespace tessera::cli

#endif
