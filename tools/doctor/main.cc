// tutti-doctor shows this machine's backends and devices, whether they work, how fast they are, and
// which ones the library would choose.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tools/doctor/machine.h"
#include "tools/doctor/probe.h"
#include "tools/run/child.h"
#include "tools/run/command_line.h"
#include "tutti/backends/plugins.h"
#include "tutti/base/error.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/settings/version.h"

namespace tutti::doctor {
namespace {

using nlohmann::json;

struct Request {
  bool is_json = false;
  bool measures = true;
  std::string backend;
};

json examine(const ListedBackend& listed, const Options& options, bool measures) {
  json entry = {{"name", listed.name},
                {"file", listed.file.empty() ? json() : json(listed.file)},
                {"available", false}};
  if (listed.plugin == nullptr) {
    entry["failure"] = listed.failure;
    return entry;
  }
  entry["summary"] = listed.plugin->summary;
  try {
    entry["version"] = listed.plugin->version ? listed.plugin->version() : std::string(kVersion);
  } catch (const Error&) {
    // The backend's library is missing. Connecting reports why.
  }
  auto plain = options;
  plain.algorithms.clear();
  entry.update(probe(listed.name, plain, measures));
  entry["available"] = !entry.contains("failure");
  return entry;
}

// Lists all backends, including this project's backends that were not built here.
std::vector<ListedBackend> all_backends(const std::vector<std::string>& folders) {
  auto list = list_backends(folders);
  for (const std::string name : {"gloo", "ucx", "nccl"}) {
    if (std::any_of(list.begin(), list.end(), [&](const auto& one) { return one.name == name; }))
      continue;
    list.push_back({name, "", nullptr,
                    fmt::format("libtutti_backend_{}.so is not there: it was not built or not "
                                "installed (see the output of cmake)",
                                name)});
  }
  return list;
}

// Returns what two ranks on this machine would use with the settings of this process.
json choice(const Options& options) {
  const std::string name = options.backend == "auto" ? "shm" : options.backend;
  auto told = probe(name, options, false);
  json entry = {{"TUTTI_BACKEND", options.backend}, {"TUTTI_ALGORITHMS", options.algorithms}};
  for (const auto* key : {"choices", "failure"})
    if (told.contains(key)) entry[key] = told[key];
  return entry;
}

json report(const Request& request, const Options& options) {
  const auto folders = backend_folders(options);
  auto searched = folders;
  searched.push_back(plugin_folder());
  json all = {{"version", kVersion},
              {"plugin_abi", kBackendAbi},
              {"library_folder", library_folder()},
              {"plugin_folders", searched},
              {"cores", cores()},
              {"gpus", gpus()},
              {"interfaces", network_interfaces()},
              {"auto",
               {{"threads of one process", "memory"},
                {"processes of one host", "shm"},
                {"one rank a host", "tcp"},
                {"several hosts with several ranks", "hierarchical"}}},
              {"backends", json::array()}};
  if (request.backend.empty()) all["choice"] = choice(options);
  for (const auto& listed : all_backends(folders))
    if (request.backend.empty() || listed.name == request.backend)
      all["backends"].push_back(examine(listed, options, request.measures));
  all["cuda"] = cuda();
  return all;
}

std::string size_text(const json& bytes) {
  if (bytes.is_null()) return "inf";
  const auto value = bytes.get<int64_t>();
  if (value >= 1 << 20) return fmt::format("{}m", value >> 20);
  if (value >= 1 << 10) return fmt::format("{}k", value >> 10);
  return fmt::format("{}", value);
}

std::string join(const json& words) {
  return fmt::format("{}", fmt::join(words.get<std::vector<std::string>>(), " "));
}

void print_choices(std::string_view title, const json& choices, bool with_backend) {
  for (const auto& [kind, ranges] : choices.items()) {
    std::vector<std::string> parts;
    for (const auto& range : ranges)
      parts.push_back(fmt::format("{}-{}={}{}", size_text(range["from"]), size_text(range["to"]),
                                  with_backend ? range["backend"].get<std::string>() + "/" : "",
                                  range["algorithm"].get<std::string>()));
    fmt::print("{}{}:{}\n", title, kind, fmt::join(parts, ","));
  }
}

void print_backend(const json& one) {
  const bool available = one["available"].get<bool>();
  fmt::print("\n{}{}", one["name"].get<std::string>(), available ? "" : " (not available)");
  if (one.contains("version")) fmt::print(" {}", one["version"].get<std::string>());
  if (one.contains("summary")) fmt::print(": {}", one["summary"].get<std::string>());
  fmt::print("\n");
  if (!one["file"].is_null()) fmt::print("  file        {}\n", one["file"].get<std::string>());
  if (!available) {
    fmt::print("  why not     {}\n", one["failure"].get<std::string>());
    return;
  }
  fmt::print("  transport   {}\n", one["route"].get<std::string>());
  fmt::print("  devices     {}\n", join(one["devices"]));
  // Dtypes with the same ops share a line.
  std::map<std::string, std::vector<std::string>> by_ops;
  for (const auto& [dtype, ops] : one["serves"].items()) by_ops[join(ops)].push_back(dtype);
  for (const auto& [ops, dtypes] : by_ops)
    fmt::print("  serves      {}: {}\n", fmt::join(dtypes, " "), ops);
  print_choices("  chooses     ", one["choices"], false);
  if (one.contains("latency_us"))
    fmt::print(
        "  measured    allreduce on 2 ranks here: {:.1f} us for 4 bytes, {:.2f} GB/s for 16 "
        "MiB\n",
        one["latency_us"].get<double>(), one["bandwidth_gb_s"].get<double>());
}

void print_cuda(const json& cuda) {
  if (!cuda["available"].get<bool>()) {
    fmt::print("cuda        not available: {}\n", cuda["failure"].get<std::string>());
    return;
  }
  fmt::print("cuda        {}\n", cuda["version"].get<std::string>());
  for (const auto& gpu : cuda["devices"]) {
    fmt::print("cuda:{:<7}{}, {:.1f} GiB, {}, at {}\n", gpu["index"].get<int>(),
               gpu["name"].get<std::string>(), gpu["memory_bytes"].get<double>() / (1 << 30),
               gpu["architecture"].get<std::string>(), gpu["address"].get<std::string>());
    for (const auto& note : gpu["notes"]) fmt::print("            {}\n", note.get<std::string>());
  }
}

void print(const json& all) {
  fmt::print("Tutti {}, plugin ABI {}, in {}\n", all["version"].get<std::string>(),
             all["plugin_abi"].get<int>(), all["library_folder"].get<std::string>());
  fmt::print("plugins     from {}\n", join(all["plugin_folders"]));
  fmt::print("cores       {} usable of {}\n", all["cores"]["usable"].get<int>(),
             all["cores"]["present"].get<int>());
  if (all["gpus"].empty()) fmt::print("gpus        none\n");
  for (const auto& gpu : all["gpus"])
    fmt::print("gpu         {} {} at {}\n", gpu["vendor"].get<std::string>(),
               gpu["device"].get<std::string>(), gpu["address"].get<std::string>());
  print_cuda(all["cuda"]);
  for (const auto& one : all["interfaces"])
    fmt::print(
        "interface   {} {}{}{}\n", one["name"].get<std::string>(), join(one["addresses"]),
        one["megabits"].is_null() ? "" : fmt::format(", {} Mb/s", one["megabits"].get<int>()),
        one["is_up"].get<bool>() ? "" : ", down");
  for (const auto& [where, backend] : all["auto"].items())
    fmt::print("auto        {}: {}\n", where, backend.get<std::string>());
  if (all.contains("choice")) {
    const auto& chosen = all["choice"];
    for (const auto* setting : {"TUTTI_BACKEND", "TUTTI_ALGORITHMS"})
      if (const auto value = chosen[setting].get<std::string>(); !value.empty())
        fmt::print("setting     {}={}\n", setting, value);
    if (chosen.contains("failure"))
      fmt::print("chosen      nothing: {}\n", chosen["failure"].get<std::string>());
    else
      print_choices("chosen      2 ranks here: ", chosen["choices"], true);
  }
  for (const auto& one : all["backends"]) print_backend(one);
}

int run(int count, char** words) {
  // By default UCX prints its warnings to standard output, which would break the JSON.
  ::setenv("UCX_LOG_FILE", "stderr", 0);
  Request request;
  CLI::App app("Shows what Tutti finds on this machine, what works, and how fast.", "tutti-doctor");
  app.set_version_flag("--version", fmt::format("tutti-doctor {}", kVersion));
  app.add_flag("--json", request.is_json, "One JSON object instead of text");
  app.add_flag_callback(
      "--no-measure", [&] { request.measures = false; }, "Connect two ranks, but measure nothing");
  app.add_option("--backend", request.backend,
                 "Check only this backend; the exit code is 1 if it cannot be used")
      ->type_name("NAME");
  try {
    app.parse(count, words);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::CallForVersion& version) {
    fmt::print("{}\n", version.what());
    return 0;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "tutti-doctor: {}; see tutti-doctor --help\n", error.what());
    return 2;
  }
  Options options;
  read_settings(run::own_variables(), options);
  auto all = report(request, options);
  if (!request.backend.empty() && all["backends"].empty())
    find_backend(request.backend, backend_folders(options));  // throws, listing the backends
  if (request.is_json)
    fmt::print("{}\n", all.dump(2));
  else
    print(all);
  return request.backend.empty() || all["backends"][0]["available"].get<bool>() ? 0 : 1;
}

}  // namespace
}  // namespace tutti::doctor

int main(int count, char** words) {
  return tutti::run::run_tool("tutti-doctor", [=] { return tutti::doctor::run(count, words); });
}
