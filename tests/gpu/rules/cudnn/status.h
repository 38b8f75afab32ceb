// Failures of the stand-in, with the text that cudnnGetLastErrorString() has for them.
#pragma once

#include <cudnn.h>

#include <string>

namespace tessera::test::rules::cudnn {

/// Returns `status`; the thread's last error is `text`.
cudnnStatus_t told(cudnnStatus_t status, const std::string& text);

const char* name_of(cudnnStatus_t status);
/// Clears it.
void get_last_error(char* text, size_t most);

}  // namespace tessera::test::rules::cudnn
