// Lines of code for pages: what stands at the places that reports name.
#pragma once

#include <map>
#include <set>
#include <string>

#include "pages/page.h"

namespace tessera::cli {

/// The lines around `places` ("model.cpp:41") for Page::code(), of those of `files` (paths by name,
/// as in source_files()) that can be read.
pages::Json code_around(const std::set<std::string>& places,
                        const std::map<std::string, std::string>& files);

}  // namespace tessera::cli
