#include "tutti/backends/plugins.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/plugin.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "libtutti_backend_", kSuffix = ".so";

// Returns whether a name is valid. Names become parts of file names, so only these characters are
// allowed.
bool is_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Returns the plugin files in a folder by the names of their backends; empty if there is no such
// folder.
std::map<std::string, std::string> plugin_files(const std::string& folder) {
  std::map<std::string, std::string> files;
  std::error_code status;
  for (const auto& entry : fs::directory_iterator(folder, status)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    if (is_name(name)) files.emplace(std::move(name), entry.path().string());
  }
  return files;
}

std::vector<std::string> searched(std::span<const std::string> folders) {
  std::vector<std::string> all(folders.begin(), folders.end());
  all.push_back(plugin_folder());
  return all;
}

Error no_such_backend(std::string_view name, const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const auto* plugin : builtin_backends()) names.emplace_back(plugin->name);
  for (const auto& folder : folders)
    for (const auto& [there, file] : plugin_files(folder)) names.push_back(there);
  const auto nearest = nearest_word(name, names);
  return {ErrorCode::unavailable,
          fmt::format("there is no backend \"{}\"{}; there are {} (and no {}{}{} in {}; a plugin's "
                      "folder belongs into TUTTI_BACKEND_PATH)",
                      name, nearest ? fmt::format(", did you mean \"{}\"?", *nearest) : "",
                      fmt::join(names, ", "), kPrefix, name, kSuffix, fmt::join(folders, ", "))};
}

// Adds the backends that a name stands for, unless they are in the list already.
void add_backend(std::vector<const BackendPlugin*>& plugins, std::string_view name,
                 std::span<const std::string> folders) {
  if (const auto levels = levels_of(name)) {
    add_backend(plugins, levels->inner, folders);
    add_backend(plugins, levels->cross, folders);
    return;
  }
  const auto* found = &find_backend(name, folders);
  if (std::find(plugins.begin(), plugins.end(), found) == plugins.end()) plugins.push_back(found);
}

}  // namespace

const BackendPlugin& load_plugin(const std::string& name, const std::string& file) {
  const auto* plugin = static_cast<const BackendPlugin*>(load_plugin_record(
      file, {"backend", "tutti_backend_plugin", kBackendAbi, "use another backend"}));
  if (plugin->name == nullptr || plugin->name != name || plugin->connect == nullptr)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{} holds no backend \"{}\" but \"{}\"{}; build it again", file, name,
                            plugin->name ? plugin->name : "",
                            plugin->connect ? "" : ", which cannot connect"));
  return *plugin;
}

const BackendPlugin& find_backend(std::string_view name, std::span<const std::string> folders) {
  for (const auto* plugin : builtin_backends())
    if (plugin->name == name) return *plugin;
  if (!is_name(name))
    throw Error(
        ErrorCode::unavailable,
        fmt::format("there is no backend {:?}; a name consists of lower-case letters, digits and _",
                    name));
  const auto all = searched(folders);
  for (const auto& folder : all) {
    const auto files = plugin_files(folder);
    if (const auto file = files.find(std::string(name)); file != files.end())
      return load_plugin(file->first, file->second);
  }
  throw no_such_backend(name, all);
}

std::vector<const BackendPlugin*> load_backends(std::string_view name, const Chooser& scores,
                                                std::span<const std::string> folders) {
  const auto builtin = builtin_backends();
  std::vector<const BackendPlugin*> plugins(builtin.begin(), builtin.end());
  if (name != "auto") add_backend(plugins, name, folders);
  for (const auto& score : scores.scores()) try {
      if (!score.backend.empty()) add_backend(plugins, score.backend, folders);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("TUTTI_ALGORITHMS={}: {}", score.text, error.what()));
    }
  return plugins;
}

std::vector<ListedBackend> list_backends(std::span<const std::string> folders) {
  std::vector<ListedBackend> list;
  for (const auto* plugin : builtin_backends()) list.push_back({plugin->name, "", plugin, ""});
  for (const auto& folder : searched(folders))
    for (const auto& found : plugin_files(folder)) {
      const auto& name = found.first;
      const auto& file = found.second;
      const bool is_known = std::any_of(list.begin(), list.end(),
                                        [&](const auto& other) { return other.name == name; });
      if (is_known) continue;
      ListedBackend one{name, file, nullptr, ""};
      try {
        one.plugin = &load_plugin(name, file);
      } catch (const Error& error) {
        one.failure = error.what();
      }
      list.push_back(std::move(one));
    }
  return list;
}

}  // namespace tutti
