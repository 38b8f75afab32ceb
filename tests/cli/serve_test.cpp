// serve, over real sockets.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/cli_background.h"
#include "cli/http_server.h"
#include "support/catch.h"

using namespace tessera;
using nlohmann::json;
using test::BackgroundJob;
using test::CliResult;
using test::eventually;
using test::expect_failure;
using test::Folder;
using test::run_cli_in;

namespace TESSERA_FILE {

const std::string kTiny = TESSERA_SOURCE_DIR "/data/tiny-llama";

struct Answer {
  int status = 0;
  std::string text;
  json body;
};

/// A connection to a server.
class Client {
 public:
  explicit Client(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval most{60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_open_ = connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;

  /// False if the server does not take it all.
  bool write(const std::string& text) {
    for (size_t sent = 0; is_open_ && sent < text.size();) {
      const ssize_t n = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return is_open_;
  }
  /// What comes next; "" at the end.
  std::string read() {
    char part[4096];
    const ssize_t n = is_open_ ? recv(socket_, part, sizeof(part), 0) : 0;
    return {part, static_cast<size_t>(std::max<ssize_t>(n, 0))};
  }
  std::string read_all() {
    std::string text;
    for (std::string part; !(part = read()).empty();) text += part;
    return text;
  }

 private:
  const int socket_;
  bool is_open_ = false;
};

/// Sends a request and reads until the server closes the connection.
Answer ask(int port, const std::string& request) {
  Client client(port);
  client.write(request);
  const std::string text = client.read_all();
  Answer answer;
  if (text.size() < 12) return answer;
  answer.status = std::stoi(text.substr(9, 3));
  const size_t body = text.find("\r\n\r\n");
  if (body != text.npos) answer.text = text.substr(body + 4);
  answer.body = json::parse(answer.text, nullptr, false);
  return answer;
}

std::string request_of(const std::string& body, const std::string& path = "/v1/completions",
                       const std::string& headers = "Host: localhost\r\n") {
  return "POST " + path + " HTTP/1.1\r\n" + headers +
         "Connection: close\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

Answer post(int port, const std::string& body, const std::string& path = "/v1/completions") {
  return ask(port, request_of(body, path));
}

Answer get(int port, const std::string& path, const std::string& headers = "Host: localhost\r\n") {
  return ask(port, "GET " + path + " HTTP/1.1\r\n" + headers + "Connection: close\r\n\r\n");
}

/// A number of /metrics.
int64_t metric(int port, const std::string& name) {
  const std::string text = get(port, "/metrics").text;
  const size_t at = text.find("\ntessera_" + name + " ");
  return at == text.npos ? -1 : std::stoll(text.substr(at + name.size() + 10));
}

/// The port of a server once it listens, or 0.
int port_of(const Folder& f, BackgroundJob& job) {
  int port = 0;
  eventually([&] {
    const std::string out = f.read("job.txt");
    const size_t at = out.find("http://127.0.0.1:");
    if (at != out.npos && out.find("/v1", at) != out.npos) port = std::stoi(out.substr(at + 17));
    return port != 0 || !job.is_running();
  });
  return port;
}

std::string serve(const std::string& flags) {
  return TESSERA_CLI " serve " + kTiny + " --set length=40 " + flags;
}

TEST_CASE("serve answers completions as generate writes them", "[cli]") {
  const Folder f;
  BackgroundJob job(f, serve("--port 0 --rows 3 --mesh \"data:2;model:2\" --layout "
                             "\"batch:data;heads,ff,vocab:model\""));
  const int port = port_of(f, job);
  INFO(f.read("job.txt"));
  REQUIRE(port != 0);
  const CliResult written = run_cli_in(
      f, "generate " + kTiny + " --set length=40 --prompt 'Call me' --temperature 0 --tokens 12");
  const std::string text = written.out.substr(0, written.out.size() - 1);
  const Answer one =
      post(port, R"({"model": "m", "prompt": "Call me", "max_tokens": 12, "temperature": 0})");
  REQUIRE(one.status == 200);
  CHECK(one.body["object"] == "text_completion");
  CHECK(one.body["model"] == "m");
  CHECK(one.body["choices"][0]["text"] == text.substr(7));
  CHECK(one.body["choices"][0]["finish_reason"] == "length");
  CHECK(one.body["choices"][0]["logprobs"].is_null());
  CHECK(one.body["usage"]["prompt_tokens"] == 7);
  CHECK(one.body["usage"]["completion_tokens"] == 12);
  // Batches, tokens, echo, a stop string, several texts with a seed.
  const Answer many = post(
      port,
      R"({"prompt": [[67, 97, 108, 108, 32, 109, 101], [97]], "max_tokens": 12, "temperature": 0, "echo": true})");
  REQUIRE(many.status == 200);
  CHECK(many.body["choices"].size() == 2);
  CHECK(many.body["choices"][0]["text"] == text);
  CHECK(many.body["choices"][1]["index"] == 1);
  const Answer stopped = post(port, json{{"prompt", "Call me"},
                                         {"max_tokens", 12},
                                         {"temperature", 0},
                                         {"stop", {text.substr(9, 2)}}}
                                        .dump());
  REQUIRE(stopped.status == 200);
  const std::string cut = stopped.body["choices"][0]["text"];
  CHECK(cut == text.substr(7, text.find(text.substr(9, 2), 7) - 7));
  CHECK(stopped.body["choices"][0]["finish_reason"] == "stop");
  const std::string seeded = R"({"prompt": "Call me", "n": 2, "seed": 5, "top_p": 0.95})";
  const Answer first = post(port, seeded), again = post(port, seeded);
  REQUIRE(first.status == 200);
  CHECK(first.body["choices"] == again.body["choices"]);
  CHECK(first.body["choices"][0]["text"] != first.body["choices"][1]["text"]);
  CHECK(get(port, "/v1/models").body["data"][0]["id"] == kTiny);
  CHECK(get(port, "/health").body["status"] == "ok");
  job.send(SIGTERM);
  CHECK(job.wait(60) == 0);
  CHECK(f.read("job.txt").find("SIGTERM: the server ends") != std::string::npos);
}

TEST_CASE("serve answers with a model whose encoder reads the prompts", "[cli]") {
  const Folder f;
  const std::string t5 = TESSERA_SOURCE_DIR "/data/tiny-t5";
  BackgroundJob job(f, TESSERA_CLI " serve " + t5 +
                           " --set length=40 --port 0 --rows 2 --mesh \"data:2;model:2\"");
  const int port = port_of(f, job);
  INFO(f.read("job.txt"));
  REQUIRE(port != 0);
  const CliResult written = run_cli_in(f, "generate " + t5 +
                                              " --set length=40 --prompt 'Call me' --temperature 0 "
                                              "--tokens 12");
  const std::string text = written.out.substr(0, written.out.size() - 1);
  const Answer one = post(port, R"({"prompt": "Call me", "max_tokens": 12, "temperature": 0})");
  REQUIRE(one.status == 200);
  CHECK(one.body["choices"][0]["text"].get<std::string>().substr(0, text.size()) == text);
  CHECK(one.body["usage"]["prompt_tokens"] == 8);  // with its end
  // The end of the prompt is added where it lacks.
  const Answer tokens =
      post(port, R"({"prompt": [[67, 97, 108, 108, 32, 109, 101, 1], [67]], "max_tokens": 12,
                     "temperature": 0})");
  REQUIRE(tokens.status == 200);
  CHECK(tokens.body["choices"][0]["text"] == one.body["choices"][0]["text"]);
  CHECK(tokens.body["usage"]["prompt_tokens"] == 10);
  for (const char* field : {"\"echo\": true", "\"logprobs\": 0"}) {
    const Answer refused = post(port, std::string(R"({"prompt": "a", )") + field + "}");
    CHECK(refused.status == 400);
    const std::string message = refused.body["error"]["message"];
    CHECK(message.find("an encoder reads the prompts of this model") != message.npos);
  }
  const Answer large = post(port, R"({"prompt": "a", "max_tokens": 40})");
  CHECK(large.status == 400);
  const std::string message = large.body["error"]["message"];
  CHECK(
      message.starts_with("the prompt has 2 tokens, and max_tokens is 40; the prompt, or "
                          "max_tokens and the token that starts an answer, are more than "));
  job.send(SIGTERM);
  CHECK(job.wait(60) == 0);
}

TEST_CASE("serve scores prompts as lm-evaluation-harness asks for it", "[cli]") {
  const Folder f;
  BackgroundJob job(f, serve("--port 0 --mesh data:1"));
  const int port = port_of(f, job);
  REQUIRE(port != 0);
  const Answer scored = post(
      port,
      R"({"model": "m", "prompt": [[67, 97, 108, 108, 32], [97, 98]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true})");
  REQUIRE(scored.status == 200);
  for (const json& choice : scored.body["choices"]) {
    const json& l = choice["logprobs"];
    const size_t n = choice["index"] == 0 ? 6 : 3;
    REQUIRE(l["tokens"].size() == n);
    REQUIRE(l["token_logprobs"].size() == n);
    REQUIRE(l["top_logprobs"].size() == n);
    CHECK(l["token_logprobs"][0].is_null());
    CHECK(l["top_logprobs"][0].is_null());
    std::string all;
    for (size_t i = 0; i < n; ++i) {
      CHECK(l["text_offset"][i] == i);
      all += l["tokens"][i].get<std::string>();
      if (i == 0) continue;
      const double value = l["token_logprobs"][i];
      CHECK(value < 0);
      // The new token is the likeliest, to the bit.
      double best = -1e9;
      for (const auto& [name, x] : l["top_logprobs"][i].items())
        best = std::max(best, x.get<double>());
      CHECK(value <= best);
      if (i + 1 == n) CHECK(value == best);
    }
    CHECK(choice["text"] == all);
  }
  // An offset counts characters of the text; a part of a character begins where that begins.
  const Answer wide = post(
      port,
      json{{"prompt", "n\xC3\xAF\xE6\x97\xA5x"}, {"max_tokens", 0}, {"logprobs", 1}, {"echo", true}}
          .dump());
  REQUIRE(wide.status == 200);
  CHECK(wide.body["choices"][0]["logprobs"]["text_offset"] == json({0, 1, 1, 2, 2, 2, 3}));
  // The likeliest token that follows, echoed, is seen to be the likeliest.
  const std::string next = scored.body["choices"][0]["logprobs"]["tokens"][5];
  REQUIRE(next.size() == 1);
  json tokens = {67, 97, 108, 108, 32, static_cast<int>(static_cast<unsigned char>(next[0]))};
  const Answer echoed = post(
      port, json{{"prompt", tokens}, {"max_tokens", 0}, {"logprobs", 2}, {"echo", true}}.dump());
  REQUIRE(echoed.status == 200);
  const json& l = echoed.body["choices"][0]["logprobs"];
  REQUIRE(l["tokens"].size() == 6);
  CHECK(l["top_logprobs"][5].size() == 2);
  CHECK(l["top_logprobs"][5][next] == l["token_logprobs"][5]);
}

TEST_CASE("serve refuses bad requests with one clear error each, and goes on", "[cli]") {
  const Folder f;
  BackgroundJob job(f, serve("--port 0 --mesh data:1 --most-tokens 60"));
  const int port = port_of(f, job);
  REQUIRE(port != 0);
  const auto refused = [&](const std::string& body, const std::string& words, int status = 400) {
    INFO(body.substr(0, 100));
    const Answer a = post(port, body);
    CHECK(a.status == status);
    REQUIRE(a.body.is_object());
    INFO(a.body.dump());
    CHECK(a.body["error"]["message"].get<std::string>().find(words) != std::string::npos);
    CHECK(a.body["error"]["type"] == "invalid_request_error");
  };
  refused("", "the body is not a JSON object");
  refused("{\"prompt\": \"a\"", "the body is not a JSON object");
  refused("[1]", "the body is not a JSON object");
  refused(std::string(100000, '['), "the body is not a JSON object");
  refused("{}", "'prompt' is missing");
  refused(R"({"prompt": []})", "'prompt' is an empty list");
  refused(R"({"prompt": [[]]})", "it is a text, a list of tokens, or a list of these");
  refused(R"({"prompt": {"a": 1}})", "it is a text, a list of tokens, or a list of these");
  refused(R"({"prompt": [1.5]})", "the token 1.5 of a prompt is not one of the 256 of the model");
  refused(R"({"prompt": [256]})", "the token 256 of a prompt is not one of the 256 of the model");
  refused(R"({"prompt": [-1]})", "the token -1 of a prompt");
  refused(R"({"prompt": [99999999999999999999]})", "of a prompt is not one of the 256");
  refused(R"({"prompt": "a", "max_tokens": 40})",
          "the prompt has 1 tokens, and max_tokens is 40; together they are more than the model's "
          "length of 40");
  refused(R"({"prompt": "a", "max_tokens": -1})",
          "'max_tokens' is -1; it is a whole number from 0");
  refused(R"({"prompt": ["a", "b"], "max_tokens": 30})",
          "the request has 62 tokens, prompts and new ones; this server takes 60 (--most-tokens)");
  refused(R"({"prompt": "a", "temperature": "hot"})", "'temperature' is \"hot\"; it is a number");
  refused(R"({"prompt": "a", "top_p": 2})", "'top_p' is 2; it is a number from");
  refused(R"({"prompt": "a", "logprobs": 6})", "'logprobs' is 6; it is a whole number from 0 to 5");
  refused(R"({"prompt": "a", "n": 0})", "'n' is 0; it is a whole number from 1");
  refused(R"({"prompt": "a", "seed": 0.5})", "'seed' is 0.5; it is a whole number");
  refused(R"({"prompt": "a", "seed": 18446744073709551615})", "'seed' is 18446744073709551615");
  refused(R"({"prompt": "a", "echo": 1})", "'echo' is 1; it is true or false");
  refused(R"({"prompt": "a", "stop": ""})", "'stop' is \"\"; it is a text that is not empty");
  refused(R"({"prompt": "a", "stop": [1]})", "'stop' is [1]; it is a text");
  refused(R"({"prompt": "a", "stream": 1})", "'stream' is 1; it is true or false");
  refused(R"({"prompt": "a", "stream_options": {}})", "it is an object, and needs stream: true");
  refused(R"({"prompt": "a", "stream": true, "stream_options": {"x": 1}})",
          "'stream_options' has 'x', which this server does not know");
  refused(R"({"prompt": "a", "suffix": "b"})", "and this server does not have it; leave it out");
  refused(R"({"prompt": "a", "logit_bias": 5})", "'logit_bias' is 5; it is an object");
  refused(R"({"prompt": "a", "logit_bias": {"256": 1}})",
          "'logit_bias' has '256', which is not one of the 256 tokens");
  refused(R"({"prompt": "a", "logit_bias": {"x": 1}})", "'logit_bias' has 'x'");
  refused(R"({"prompt": "a", "logit_bias": {"5": 101}})", "'5' is 101; it is a number from -100");
  refused(R"({"prompt": "a", "presence_penalty": 3})",
          "'presence_penalty' is 3; it is a number from -2 to 2");
  // A token that must come, and one that may not come again.
  const auto text_of = [&](const std::string& fields) {
    const Answer answer =
        post(port, R"({"prompt": "a", "max_tokens": 4, "temperature": 0, )" + fields + "}");
    REQUIRE(answer.status == 200);
    return answer.body["choices"][0]["text"].get<std::string>();
  };
  CHECK(text_of(R"("logit_bias": {"66": 100})") == "BBBB");
  const std::string both =
      text_of(R"("logit_bias": {"66": 100, "67": 100}, "presence_penalty": 2)").substr(0, 2);
  CHECK((both == "BC" || both == "CB"));
  refused(R"({"prompt": "a", "model": 3})", "'model' is 3; it is a text");
  refused(R"({"prompt": "a", "maxtokens": 3})",
          "'maxtokens' is no field of a completion that this server knows");
  refused("{\"prompt\": \"" + std::string(17 << 20, 'a') + "\"}",
          "the body has more than the 16777216 bytes that this server takes", 413);
  const Answer chat =
      post(port, R"({"messages": [{"role": "user", "content": "a"}]})", "/v1/chat/completions");
  CHECK(chat.status == 400);
  CHECK(chat.text.find("this model answers no conversations: ") != std::string::npos);
  CHECK(post(port, "{}", "/v1/embeddings").status == 404);
  CHECK(ask(port, "nonsense\r\n\r\n").status != 200);
  const Answer fine = post(port, R"({"prompt": "a", "max_tokens": 3})");
  CHECK(fine.status == 200);
  // A second server on the port.
  expect_failure(run_cli_in(f, "serve " + kTiny + " --set length=40 --mesh data:1 --port " +
                                   std::to_string(port)),
                 1, {"cannot listen on 127.0.0.1:", "another server has the port"});
  CHECK(get(port, "/health").status == 200);
  expect_failure(run_cli_in(f, "serve gpt"), 1, {"serve needs --checkpoint DIR"});
  job.send(SIGTERM);
  CHECK(job.wait(60) == 0);
}

TEST_CASE("serve ends soon after SIGTERM, also while it writes", "[cli]") {
  const Folder f;
  BackgroundJob job(f, TESSERA_CLI " serve " + kTiny +
                           " --set length=64 --port 0 --mesh data:1 --most-tokens 1000000");
  const int port = port_of(f, job);
  REQUIRE(port != 0);
  Answer a;
  std::thread client([&] {
    a = post(port,
             json{{"prompt", std::vector<std::string>(2000, "a")}, {"max_tokens", 60}}.dump());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  job.send(SIGTERM);
  CHECK(job.wait(60) == 0);
  client.join();
  CHECK(a.status == 503);
  CHECK(a.body["error"]["message"].get<std::string>().find("the server ends") != std::string::npos);
}

// The library ends the process if it stops while a connection waits for its answer.
TEST_CASE("a server that ends answers what open connections still ask", "[cli]") {
  if (cli::http_library().rfind("no", 0) == 0) return;
  constexpr size_t kLarge = size_t{64} << 20;
  std::atomic<int> asked = 0;
  auto server = std::make_unique<cli::HttpServer>(
      "127.0.0.1", 0, cli::HttpLimits{}, [&](const std::shared_ptr<cli::HttpExchange>& exchange) {
        if (exchange->path == "/large") exchange->answer(200, std::string(kLarge, 'a'), "text");
        ++asked;
      });
  const std::string end = " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  // One client does not take its answer, so the server waits a while; others go on asking.
  Client slow(server->port()), first(server->port()), second(server->port());
  slow.write("GET /large" + end);
  for (Client* client : {&first, &second}) client->write("GET /" + end);
  REQUIRE(eventually([&] { return asked == 3; }));
  std::thread ends([&] { server.reset(); });
  for (Client* client : {&first, &second}) {
    CHECK(client->read().rfind("HTTP/1.1 503", 0) == 0);
    client->write("GET /" + end);
    CHECK(client->read().rfind("HTTP/1.1 503", 0) == 0);
  }
  ends.join();
  CHECK(asked == 3);
}

TEST_CASE("serve writes conversations, whole and piece by piece", "[cli]") {
  const Folder f;
  std::filesystem::copy(kTiny, f("chat"));
  f.write("chat/chat_template.jinja",
          "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
          "{% if add_generation_prompt %}a:{% endif %}");
  BackgroundJob job(f, TESSERA_CLI " serve chat --set length=64 --port 0 --rows 2 --mesh data:1");
  const int port = port_of(f, job);
  INFO(f.read("job.txt"));
  REQUIRE(port != 0);
  json ask_for = {{"messages", {{{"role", "user"}, {"content", "Call me"}}}},
                  {"max_tokens", 12},
                  {"temperature", 0},
                  {"logprobs", true},
                  {"top_logprobs", 2}};
  const Answer whole = post(port, ask_for.dump(), "/v1/chat/completions");
  REQUIRE(whole.status == 200);
  CHECK(whole.body["object"] == "chat.completion");
  const json& choice = whole.body["choices"][0];
  CHECK(choice["message"]["role"] == "assistant");
  CHECK(choice["finish_reason"] == "length");
  CHECK(choice["logprobs"]["content"].size() == 12);
  CHECK(choice["logprobs"]["content"][0]["top_logprobs"].size() == 2);
  CHECK(whole.body["usage"]["completion_tokens"] == 12);
  const Answer text =
      post(port, R"({"prompt": "u:Call me;a:", "max_tokens": 12, "temperature": 0})");
  CHECK(choice["message"]["content"] == text.body["choices"][0]["text"]);
  CHECK(whole.body["usage"]["prompt_tokens"] == 12);
  // A list of texts is one text; without max_tokens there is room for the model's length.
  ask_for["messages"][0]["content"] =
      json::array({{{"type", "text"}, {"text", "Call "}}, {{"type", "text"}, {"text", "me"}}});
  CHECK(post(port, ask_for.dump(), "/v1/chat/completions").body["choices"] ==
        whole.body["choices"]);
  ask_for.erase("max_tokens");
  CHECK(post(port, ask_for.dump(), "/v1/chat/completions").body["usage"]["total_tokens"] == 64);
  // The pieces are the text, for both kinds.
  for (const std::string path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool is_chat = path != "/v1/completions";
    json body = {{"max_tokens", 12},
                 {"temperature", 0},
                 {"n", 2},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (is_chat)
      body["messages"] = {{{"role", "user"}, {"content", "Call me"}}};
    else
      body["prompt"] = "u:Call me;a:";
    const std::string all = ask(port, request_of(body.dump(), path)).text;
    std::string pieces[2];
    int reasons = 0, events = 0, roles = 0;
    int64_t total = 0;
    for (size_t at = 0; (at = all.find("data: {", at)) != all.npos; ++at, ++events) {
      const json event =
          json::parse(all.substr(at + 6, all.find("\n\n", at) - at - 6), nullptr, false);
      REQUIRE(event.is_object());
      CHECK(event["object"] == (is_chat ? "chat.completion.chunk" : "text_completion"));
      if (event["choices"].empty()) total = event["usage"]["total_tokens"];
      for (const json& one : event["choices"]) {
        const json& piece = is_chat ? one["delta"]["content"] : one["text"];
        pieces[one["index"].get<size_t>()] += piece.get<std::string>();
        roles += is_chat && one["delta"].contains("role");
        reasons += one["finish_reason"] == "length";
      }
    }
    CHECK(pieces[0] == choice["message"]["content"]);
    CHECK(pieces[1] == pieces[0]);
    CHECK(events > 12);
    CHECK(reasons == 2);
    CHECK(roles == (is_chat ? 2 : 0));
    CHECK(total == 12 + 24);
    CHECK(all.find("data: [DONE]\n\n") != all.npos);
  }
  for (const auto& [body, words] : std::map<std::string, std::string>{
           {R"({"messages": []})", "'messages' is []; it is a list with at least one"},
           {R"({"messages": ["a"]})", "a message is \"a\"; it is {"},
           {R"({"messages": [{"role": "user", "content": 1}]})", "'content' is 1; it is a text"},
           {R"({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]})",
            "a message has 'tool_calls', which this server does not know"},
           {R"({"messages": [{"role": "user", "content": "a"}], "tools": [1]})",
            "'tools' is [1], and this server does not have it"},
           {R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1})",
            "'top_logprobs' is 1 without logprobs: true"},
           {R"({"prompt": "a"})", "'prompt' is no field of a chat completion"}}) {
    const Answer a = post(port, body, "/v1/chat/completions");
    INFO(body << ": " << a.text);
    CHECK(a.status == 400);
    CHECK(a.body["error"]["message"].get<std::string>().find(words) != std::string::npos);
  }
  job.send(SIGTERM);
  CHECK(job.wait(60) == 0);
}

TEST_CASE("serve begins a text while others are written, and ends those of clients that left",
          "[cli]") {
  const Folder f;
  BackgroundJob job(
      f, TESSERA_CLI " serve " + kTiny + " --set length=512 --port 0 --rows 3 --mesh data:1");
  const int port = port_of(f, job);
  REQUIRE(port != 0);
  const std::string many = request_of(R"({"prompt": "a", "max_tokens": 500, "n": 100})");
  auto first = std::make_unique<Client>(port);
  REQUIRE(first->write(many));
  REQUIRE(eventually([&] { return metric(port, "texts_running") == 3; }));
  // The next row that is free goes to the client that has none, not to the 97 texts before it.
  CHECK(post(port, R"({"prompt": "b", "max_tokens": 2})").status == 200);
  CHECK(metric(port, "requests_answered_total") == 1);
  CHECK(metric(port, "texts_waiting") > 50);
  first.reset();
  REQUIRE(eventually([&] { return metric(port, "requests_left_total") == 1; }));
  REQUIRE(eventually([&] { return metric(port, "texts_running") == 0; }));
  CHECK(metric(port, "texts_waiting") == 0);
  // Texts begin where rows are free, and their pieces come as they are written.
  Client two(port);
  REQUIRE(two.write(request_of(R"({"prompt": "a", "max_tokens": 500, "n": 2, "stream": true})")));
  CHECK(two.read().starts_with("HTTP/1.1 200"));
  CHECK(post(port, R"({"prompt": "b", "max_tokens": 2})").status == 200);
  CHECK(two.read_all().find("data: [DONE]") != std::string::npos);
  job.send(SIGTERM);
  CHECK(job.wait(60) == 0);
}

TEST_CASE("serve outlives clients that send too much, too slowly or nothing", "[cli]") {
  const Folder f;
  BackgroundJob job(f, serve("--port 0 --mesh data:1"));
  const int port = port_of(f, job);
  REQUIRE(port != 0);
  const auto resident = [&] {
    std::ifstream file("/proc/" + std::to_string(job.pid()) + "/statm");
    int64_t all = 0, pages = 0;
    file >> all >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  REQUIRE(post(port, R"({"prompt": "a"})").status == 200);
  const int64_t before = resident();
  // A body that nests as deep as a stack.
  for (const std::string field : {"prompt", "stop", "x"}) {
    const Answer deep = post(
        port, "{\"" + field + "\": " + std::string(200000, '[') + std::string(200000, ']') + "}");
    CHECK(deep.status == 400);
  }
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::string block(1 << 16, 'a');
  {  // a body without an end
    Client endless(port);
    REQUIRE(endless.write(head + "Transfer-Encoding: chunked\r\n\r\n"));
    int64_t sent = 0;
    while (sent < 200000000 && endless.write("10000\r\n" + block + "\r\n")) sent += 1 << 16;
    CHECK(sent < 200000000);
  }
  {  // a header without an end, and headers without an end
    Client line(port), lines(port);
    REQUIRE(line.write(head + "X: "));
    REQUIRE(lines.write(head));
    int64_t sent = 0;
    while (sent < 100000000 && line.write(block)) sent += 1 << 16;
    CHECK(sent < 100000000);
    for (sent = 0; sent < 100000000 && lines.write("X: y\r\n");) sent += 6;
    CHECK(sent < 100000000);
  }
  const std::string zipped = "{\"prompt\": \"a\"}";
  CHECK(ask(port,
            request_of(zipped, "/v1/completions", "Host: localhost\r\nContent-Encoding: gzip\r\n"))
            .status == 415);
  // Connections that say nothing, or end within a request, keep nobody out.
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(std::make_unique<Client>(port));
    if (i % 2 == 0) idle.back()->write("POST /v1/comp");
  }
  CHECK(get(port, "/health").status == 200);
  CHECK(post(port, R"({"prompt": "a", "max_tokens": 2})").status == 200);
  CHECK(resident() - before < 200000000);
  job.send(SIGTERM);
  CHECK(job.wait(60) == 0);
}

TEST_CASE("serve asks who asks", "[cli]") {
  const Folder f;
  f.write("keys", "first\nsecond \n");
  BackgroundJob job(f, serve("--port 0 --mesh data:1 --api-key-file keys --origin http://a.org"));
  const int port = port_of(f, job);
  REQUIRE(port != 0);
  const std::string local = "Host: localhost:1\r\n", key = "Authorization: Bearer second\r\n";
  CHECK(get(port, "/health", local).status == 200);
  CHECK(get(port, "/v1/models", local).status == 401);
  CHECK(get(port, "/v1/models", local + "Authorization: Bearer third\r\n").status == 401);
  CHECK(get(port, "/v1/models", local + "Authorization: Bearer secon\r\n").status == 401);
  CHECK(get(port, "/v1/models", local + key).status == 200);
  CHECK(get(port, "/v1/models", "Host: 127.0.0.1:5\r\n" + key).status == 200);
  for (const std::string host : {"evil.org", "127.evil.org", "localhost.evil.org"})
    CHECK(get(port, "/health", "Host: " + host + "\r\n").status == 403);
  for (const std::string origin : {"http://evil.org", "null", "http://a.org.evil"})
    CHECK(get(port, "/health", local + "Origin: " + origin + "\r\n").status == 403);
  for (const std::string origin : {"http://a.org", "http://localhost:3000"})
    CHECK(get(port, "/health", local + "Origin: " + origin + "\r\n").status == 200);
  f.write("empty", "\n");
  expect_failure(run_cli_in(f, "serve " + kTiny + " --set length=40 --api-key-file empty"), 1,
                 {"'empty' has no key; it has one a line"});
  job.send(SIGTERM);
  CHECK(job.wait(60) == 0);
}

}  // namespace TESSERA_FILE
