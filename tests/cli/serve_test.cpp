// serve, over real sockets.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "cli/cli_background.h"
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
  json body;
};

/// Sends a request and reads until the server closes the connection.
Answer ask(int port, const std::string& request) {
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  const timeval most{60, 0};
  setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (connect(s, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    for (size_t sent = 0; sent < request.size();) {
      const ssize_t n = send(s, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    char part[4096];
    for (ssize_t n; (n = recv(s, part, sizeof(part), 0)) > 0;)
      text.append(part, static_cast<size_t>(n));
  }
  close(s);
  Answer answer;
  if (text.size() < 12) return answer;
  answer.status = std::stoi(text.substr(9, 3));
  const size_t body = text.find("\r\n\r\n");
  if (body != text.npos) answer.body = json::parse(text.substr(body + 4), nullptr, false);
  return answer;
}

Answer post(int port, const std::string& body, const std::string& path = "/v1/completions") {
  return ask(port, "POST " + path +
                       " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
                       "application/json\r\nContent-Length: " +
                       std::to_string(body.size()) + "\r\n\r\n" + body);
}

Answer get(int port, const std::string& path) {
  return ask(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
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
  refused(R"({"prompt": "a", "stream": true})",
          "'stream' is true, and this server does not have it");
  refused(R"({"prompt": "a", "model": 3})", "'model' is 3; it is a text");
  refused(R"({"prompt": "a", "maxtokens": 3})",
          "'maxtokens' is no field of a completion that this server knows");
  refused("{\"prompt\": \"" + std::string(17 << 20, 'a') + "\"}",
          "the body has more than the 16777216 bytes that this server takes", 413);
  CHECK(post(port, "{}", "/v1/chat/completions").status == 404);
  CHECK(ask(port, "nonsense\r\n\r\n").status == 400);
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

}  // namespace TESSERA_FILE
