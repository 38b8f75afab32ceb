// An HTTP server that neither slow nor greedy clients stop: one thread waits for all connections,
// and what a connection may hold is bounded. Over libmicrohttpd.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace tessera::cli {

struct HttpLimits {
  size_t body = size_t{16} << 20;     ///< bytes of a request's body
  size_t bodies = size_t{64} << 20;   ///< bytes of all bodies that are read or waited for
  size_t headers = size_t{32} << 10;  ///< bytes of a request's line and headers
  int connections = 512, of_address = 256;
  int idle_seconds = 30;     ///< a connection that sends nothing
  int request_seconds = 60;  ///< from the first byte of a request to its last
};

/// A request and its answer. The server's thread makes it; any thread may answer.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  std::string method, path, body;
  /// Of a header, whatever the case of its name; "" if it is not there.
  virtual std::string header(const char* name) const = 0;

  /// The whole answer, once.
  virtual void answer(int status, std::string body, const char* type = "application/json") = 0;
  /// Instead of answer(): pieces of an answer as they come, then the end.
  virtual void begin_stream(const char* type) = 0;
  virtual void push(const std::string& piece) = 0;
  virtual void end_stream() = 0;
  /// True if the client has closed the connection.
  virtual bool is_client_gone() = 0;
};

using HttpHandler = std::function<void(const std::shared_ptr<HttpExchange>&)>;

class HttpServer {
 public:
  /// Listens on `host`, a name or an address, and a port; 0: a free one. `handler` is called on the
  /// server's thread and returns at once. Throws an io error if the address cannot be had, and
  /// unsupported without the library.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, HttpHandler handler);
  /// Exchanges without an answer are answered 503.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  int port() const;
  /// Closes connections whose request takes too long. To be called now and then.
  void close_slow();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "libmicrohttpd 0.9.75"; "no: ..." if it was not there.
std::string http_library();

/// The body of an answer that is an error, as OpenAI's API has it.
std::string http_error(const std::string& message, const char* type);

}  // namespace tessera::cli
