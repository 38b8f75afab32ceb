// page.css and page.js, built in.
#pragma once

namespace tessera::pages {

extern const char* const kStyle;
extern const char* const kScript;

}  // namespace tessera::pages
