#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

/// Returns the folder of libtutti.so.
std::string library_folder();
/// Returns the folder of this library's plugins. In an installation it is the folder
/// tutti-<so-version> beside libtutti.so, so that two versions can be installed side by side. In a
/// build tree it is the folder of libtutti.so.
std::string plugin_folder();

/// Describes a plugin file, for messages.
struct PluginKind {
  std::string_view noun;    // "backend"
  std::string_view symbol;  // name of the plugin's record, which begins with the ABI number
  uint32_t abi = 0;
  std::string_view instead;  // advice if it cannot be loaded: "use another backend"
};

/// Loads a plugin for the life of the process and returns its record. Throws Error(unavailable) if
/// the plugin cannot be loaded, Error(corrupt_data) if the file is damaged or has no record, and
/// Error(version) if the plugin was built for another ABI. Nothing else is thrown, and a damaged
/// file does not end the process.
const void* load_plugin_record(const std::string& file, const PluginKind& kind);

}  // namespace tutti
