#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

/// The folder of libtutti.so.
std::string library_folder();
/// Where the plugins of this library lie: in an installation the folder tutti-<its so-version>
/// beside libtutti.so, so that two versions can be installed at once; in a build tree beside it.
std::string plugin_folder();

/// What a plugin file should be, for messages.
struct PluginKind {
  std::string_view noun;    // "backend"
  std::string_view symbol;  // of its record, whose first member is the ABI number
  uint32_t abi = 0;
  std::string_view instead;  // what to do where it cannot be loaded: "use another backend"
};

/// Loads a file for good and returns its record. Throws Error(unavailable) if it cannot be loaded,
/// Error(corrupt_data) if it is damaged or has no such record, Error(version) if it was built for
/// another ABI. Throws nothing else, and a damaged file does not end the process.
const void* load_plugin_record(const std::string& file, const PluginKind& kind);

}  // namespace tutti
