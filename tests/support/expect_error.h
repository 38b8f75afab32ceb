// An Error with the words that its message must have.
#pragma once

#include <string>
#include <vector>

#include "support/catch.h"
#include "tessera/error.h"

namespace tessera::test {

/// `work` throws an Error of this kind whose message contains all `words`.
template <class Work>
void expect_error(ErrorKind kind, const std::vector<std::string>& words, Work work) {
  std::string message = "no error";
  ErrorKind thrown = ErrorKind::internal;
  try {
    work();
  } catch (const Error& e) {
    message = e.what();
    thrown = e.kind();
  }
  for (const std::string& word : words) {
    INFO("message: " << message << "\nmissing: " << word);
    CHECK(message.find(word) != std::string::npos);
  }
  INFO("message: " << message);
  CHECK(std::string(to_string(thrown)) == to_string(kind));
  CHECK(message.find('\n') == std::string::npos);
}

template <class Work>
void expect_usage(const std::vector<std::string>& words, Work work) {
  expect_error(ErrorKind::usage, words, work);
}

}  // namespace tessera::test
