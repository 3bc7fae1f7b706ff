// Every setting is one row of one table. read_settings and describe_options iterate over it.

#include "tutti/core/settings/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl_settings.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kMostBytes = int64_t{1} << 40;
constexpr int kMostSockets = 64;
constexpr double kMostSeconds = 1e7;
constexpr std::string_view kWantedProbe =
    "is not one of auto, always, off or a file (expected its absolute path, /...)";

// Ranks exchange their settings as lines of text, so a setting must not contain a line break.
bool is_probe(std::string_view text) {
  return text == "auto" || text == "always" || text == "off" ||
         (text.starts_with('/') && !text.ends_with('/') && text.find('\n') == text.npos);
}

struct Setting {
  std::string variable;
  std::string unit;
  std::string meaning;
  std::string want;  // "is not a size (expected digits ...)"
  // Returns false if the text is invalid. The field is then unchanged.
  std::function<bool(const std::string& text, Options&)> read;
  std::function<std::string(const Options&)> print;
  bool is_of_backends = false;  // only some backends use the setting; see Context::setting()
  bool must_agree = false;      // must be equal on all ranks, because it changes what they send
};

Setting of_backends(Setting setting) {
  setting.is_of_backends = true;
  return setting;
}

Setting alike(Setting setting) {
  setting.must_agree = true;
  return setting;
}

template <typename Integer>
Setting count(std::string variable, Integer Options::*field, int64_t low, int64_t high,
              std::string meaning) {
  return {std::move(variable),
          "count",
          std::move(meaning),
          fmt::format("is not a number from {} to {}", low, high),
          [=](const std::string& text, Options& options) {
            const auto value = parse_integer(text, low, high);
            if (value) options.*field = static_cast<Integer>(*value);
            return value.has_value();
          },
          [=](const Options& options) { return fmt::format("{}", options.*field); }};
}

std::string print_size(int64_t bytes) {
  for (const auto& [shift, letter] : {std::pair{30, 'G'}, {20, 'M'}, {10, 'K'}})
    if (bytes != 0 && bytes % (int64_t{1} << shift) == 0)
      return fmt::format("{}{}", bytes >> shift, letter);
  return fmt::format("{}", bytes);
}

Setting size(std::string variable, int64_t Options::*field, int64_t low, std::string meaning) {
  return {std::move(variable),
          "bytes",
          std::move(meaning),
          low == 0 ? "is not a size (expected digits and an optional K, M or G)"
                   : fmt::format(
                         "is not a size of at least {} (expected digits and an optional K, M or G)",
                         print_size(low)),
          [=](const std::string& text, Options& options) {
            const auto value = parse_size(text);
            if (!value || *value < low || *value > kMostBytes) return false;
            options.*field = *value;
            return true;
          },
          [=](const Options& options) { return print_size(options.*field); }};
}

Setting seconds(std::string variable, double Options::*field, double low, std::string meaning) {
  return {std::move(variable),
          "seconds",
          std::move(meaning),
          fmt::format("is not a time (must be seconds from {} to {})", low, kMostSeconds),
          [=](const std::string& text, Options& options) {
            const auto value = parse_number(text, low, kMostSeconds);
            if (value) options.*field = *value;
            return value.has_value();
          },
          [=](const Options& options) { return fmt::format("{}", options.*field); }};
}

// Returns a row for a text setting. `is_valid` returns false for invalid text, or throws its own
// error.
Setting text(std::string variable, std::string Options::*field, std::string meaning,
             std::string want = "",
             const std::function<bool(const std::string&)>& is_valid = nullptr) {
  return {std::move(variable),
          "text",
          std::move(meaning),
          std::move(want),
          [=](const std::string& value, Options& options) {
            if (is_valid && !is_valid(value)) return false;
            options.*field = value;
            return true;
          },
          [=](const Options& options) { return options.*field; }};
}

Setting flag(std::string variable, bool Options::*field, std::string meaning) {
  return {std::move(variable),
          "0 or 1",
          std::move(meaning),
          "is not a switch (must be 0 or 1)",
          [=](const std::string& value, Options& options) {
            if (value != "0" && value != "1") return false;
            options.*field = value == "1";
            return true;
          },
          [=](const Options& options) { return options.*field ? "1" : "0"; }};
}

template <typename Enum>
Setting choice(std::string variable, Enum Options::*field, std::vector<std::string> words,
               std::string meaning) {
  const auto want = fmt::format("is not one of {}", fmt::join(words, ", "));
  return {std::move(variable),
          "word",
          std::move(meaning),
          want,
          [=](const std::string& text, Options& options) {
            for (size_t i = 0; i < words.size(); ++i)
              if (words[i] == text) return options.*field = static_cast<Enum>(i), true;
            return false;
          },
          [=](const Options& options) { return words.at(static_cast<size_t>(options.*field)); }};
}

bool is_store_address(const std::string& text) {
  if (!text.starts_with("tcp://")) return text.starts_with("file:///");
  const auto colon = text.rfind(':');
  return colon >= 7 && parse_integer(text.substr(colon + 1), 1, 65535);
}

bool is_path_list(const std::string& text) {
  if (text.empty()) return true;
  const auto folders = split_text(text, ':');
  return std::all_of(folders.begin(), folders.end(),
                     [](const std::string& folder) { return folder.starts_with('/'); });
}

bool is_nccl_config(const std::string& text) {
  parse_nccl_settings(text);  // throws its own error
  return true;
}

// Returns a row for the secret. options.cc reads the secret itself, from one of two variables. A
// secret is never printed.
Setting secret(std::string variable, std::string unit, std::string meaning) {
  const bool by_descriptor = variable == "TUTTI_SECRET_FD";
  return {std::move(variable),
          std::move(unit),
          std::move(meaning),
          "",
          [](const std::string&, Options&) { return true; },
          [=](const Options& options) {
            const bool here = options.sources.contains("TUTTI_SECRET_FD") == by_descriptor;
            return options.secret.empty() || !here ? "" : "(set)";
          }};
}

std::vector<Setting> all_settings() {
  return {
      count("TUTTI_RANK", &Options::rank, 0, kMostRanks,
            "number of this process among all ranks, from 0"),
      count("TUTTI_SIZE", &Options::size, 1, kMostRanks, "number of all ranks"),
      count("TUTTI_LOCAL_RANK", &Options::local_rank, 0, kMostRanks,
            "number of this process among the ranks of its host, from 0"),
      count("TUTTI_LOCAL_SIZE", &Options::local_size, 1, kMostRanks,
            "number of ranks on this host"),
      count("TUTTI_INCARNATION", &Options::incarnation, 0, kMostRanks,
            "how often this rank was started before"),
      text("TUTTI_STORE", &Options::store, "where ranks meet: tcp://host:port or file:///folder",
           "is not the address of a store (expected tcp://host:port or file:///folder)",
           is_store_address),
      flag("TUTTI_SERVE_STORE", &Options::serve_store,
           "rank 0 serves the store at TUTTI_STORE itself"),
      text("TUTTI_JOB", &Options::job, "separates jobs that share a store"),
      secret("TUTTI_SECRET_FD", "descriptor",
             "from which the job's secret is read; it is then closed"),
      secret("TUTTI_SECRET", "text", "the job's secret; it is then removed from the environment"),
      text("TUTTI_INTERFACE", &Options::network_interface,
           "network interface of this rank, by name or address; empty: the library chooses"),
      alike(of_backends(count(
          "TUTTI_TCP_SOCKETS", &Options::tcp_sockets, 1, kMostSockets,
          "TCP connections between two ranks; use more if the network limits the rate of each"))),
      of_backends(text(
          "TUTTI_TCP_CONGESTION", &Options::tcp_congestion,
          "congestion control of TCP connections, such as bbr; empty: the host's own (on loopback "
          "cubic)")),
      text("TUTTI_HOST", &Options::host,
           "ranks with the same name here count as one host; empty: the ranks find out"),
      alike(
          text("TUTTI_BACKEND", &Options::backend,
               "auto, or a backend: memory, shm, tcp, hierarchical, peer, a plugin, or two levels "
               "(shm+ucx)")),
      text("TUTTI_BACKEND_PATH", &Options::backend_path,
           "folders, separated by colons, that are searched for plugins before the library's own",
           "is not a list of folders (expected absolute paths, separated by colons)", is_path_list),
      of_backends(text(
          "TUTTI_BACKEND_LIBRARY", &Options::backend_library,
          "file of the library that the backend loads by itself (nccl); empty: the usual name")),
      alike(of_backends(text("TUTTI_NCCL_CONFIG", &Options::nccl_config,
                             "settings of NCCL's communicators, such as min_ctas=4,net_name=Socket",
                             "", is_nccl_config))),
      alike(text(
          "TUTTI_ALGORITHMS", &Options::algorithms,
          "overrides the choice of algorithms, such as allreduce:0-32k=one_shot,32k-inf=ucx/ring")),
      alike(text("TUTTI_PROBE", &Options::probe,
                 "how the network between hosts is known: auto (saved figures; measured if there "
                 "are none), "
                 "always (measured), off, or the file in which the figures are saved",
                 std::string(kWantedProbe), is_probe)),
      alike(
          choice("TUTTI_DETERMINISM", &Options::determinism, {"fastest", "run", "rank_order"},
                 "which results have equal bits: fastest (none is promised), run (in each run), or "
                 "rank_order (with every algorithm too)")),
      alike(size("TUTTI_SEGMENT_BYTES", &Options::segment_bytes, 64,
                 "size of the pieces into which long operations are cut over TCP")),
      alike(size("TUTTI_FUSION_BYTES", &Options::fusion_bytes, 0,
                 "largest bucket of fused tensors; 0: no fusion")),
      alike(size("TUTTI_PARTITION_BYTES", &Options::partition_bytes, 0,
                 "larger tensors are sent in pieces of this size; 0: whole")),
      alike(count("TUTTI_CACHE_CAPACITY", &Options::cache_capacity, 0, 1 << 24,
                  "most names that are sent as short numbers; 0: none")),
      alike(flag("TUTTI_REPLAY", &Options::replay,
                 "repeat equal steps by a plan, without requests to rank 0")),
      alike(count("TUTTI_REPLAY_AFTER", &Options::replay_after, 1, 1'000'000,
                  "equal steps before the plan is locked")),
      alike(flag("TUTTI_MIXED_DEVICES", &Options::mixed_devices,
                 "tensors of one name may be on different devices: all go through host memory")),
      flag("TUTTI_CHECK_MEMORY", &Options::check_memory,
           "for debugging: host memory freed before its Work was done is an error"),
      seconds("TUTTI_CONNECT_TIMEOUT", &Options::connect_timeout, 0.001,
              "time within which all ranks must be connected"),
      seconds("TUTTI_PEER_TIMEOUT", &Options::peer_timeout, 0.001,
              "a rank that does not answer for this time is an error"),
      seconds("TUTTI_OPERATION_TIMEOUT", &Options::operation_timeout, 0,
              "a rank that is late for this time is an error; 0: it is only reported"),
      seconds("TUTTI_STALL_WARNING", &Options::stall_warning, 0.001,
              "a rank that is late for this time is reported"),
      seconds("TUTTI_CLOSE_TIMEOUT", &Options::close_timeout, 0,
              "longest wait for the farewell or a running callback when a rank closes"),
      text("TUTTI_TIMELINE", &Options::timeline, "file for the Chrome trace; empty: none"),
      choice("TUTTI_LOG", &Options::log_level, {"error", "warning", "info", "debug"},
             "what is logged: error, warning, info or debug"),
  };
}

Error bad_setting(const std::string& message) {
  return {ErrorCode::invalid_argument, message + "; see `tutti-run --options`."};
}

bool holds_more_than_default(const Setting& setting, const Options& options) {
  static const Options defaults;
  return options.sources.contains(setting.variable) ||
         setting.print(options) != setting.print(defaults);
}

void read_rows(const Environment& environment, Options& options, const std::string& source,
               bool only_unset) {
  const auto settings = all_settings();
  std::vector<std::string> names;
  for (const auto& setting : settings) names.push_back(setting.variable);
  constexpr std::string_view kPrefix = "TUTTI_";
  for (auto at = environment.lower_bound(std::string(kPrefix));
       at != environment.end() && at->first.starts_with(kPrefix); ++at) {
    const auto& [variable, text] = *at;
    const auto setting =
        std::find_if(settings.begin(), settings.end(),
                     [&name = variable](const Setting& row) { return row.variable == name; });
    if (setting == settings.end()) {
      const auto nearest = nearest_word(variable, names);
      throw bad_setting(fmt::format("{} is not a setting of Tutti{}", variable,
                                    nearest ? fmt::format(" (did you mean {}?)", *nearest) : ""));
    }
    // An invalid value is refused even if the variable is not used.
    Options unused;
    const bool counts = !only_unset || !holds_more_than_default(*setting, options);
    if (!setting->read(text, counts ? options : unused))
      throw bad_setting(fmt::format("{}={} {}", variable, text, setting->want));
    if (counts) options.sources[variable] = source;
  }
}

}  // namespace

void read_settings(const Environment& environment, Options& options, const std::string& source) {
  read_rows(environment, options, source, false);
}

void fill_settings(const Environment& environment, Options& options) {
  read_rows(environment, options, "environment", true);
}

bool is_set(const Options& options, std::string_view variable) {
  const auto settings = all_settings();
  return std::any_of(settings.begin(), settings.end(), [&](const Setting& setting) {
    return setting.variable == variable && holds_more_than_default(setting, options);
  });
}

void check_options(const Options& options) {
  const auto need = [](bool holds, const std::string& message) {
    if (!holds) throw Error(ErrorCode::invalid_argument, message);
  };
  need(options.size >= 1, fmt::format("the size is {}; it must be at least 1", options.size));
  need(options.rank >= 0 && options.rank < options.size,
       fmt::format("rank {} is not a rank of {} (must be from 0 to {})", options.rank, options.size,
                   options.size - 1));
  need(
      options.local_size >= 1 && options.local_rank >= 0 && options.local_rank < options.local_size,
      fmt::format("local rank {} is not a rank of the {} on its host (must be from 0 to {})",
                  options.local_rank, options.local_size, options.local_size - 1));
  need(options.local_size <= options.size,
       fmt::format("{} ranks on one host are more than the {} ranks of the job", options.local_size,
                   options.size));
  need(options.size == 1 || !options.store.empty() || options.store_object,
       fmt::format("{} ranks must meet somewhere, but there is no store (tcp://host:port or "
                   "file:///folder); tutti-run provides one",
                   options.size));
  need(!options.serve_store || options.store.starts_with("tcp://"),
       fmt::format("rank 0 can serve a store at tcp://host:port only, not at \"{}\"",
                   options.store));
  need(options.segment_bytes > 0, "the segment size must be at least 1 byte");
  need(options.tcp_sockets >= 1 && options.tcp_sockets <= kMostSockets,
       fmt::format("two ranks can have 1 to {} TCP connections, not {}", kMostSockets,
                   options.tcp_sockets));
  try {
    parse_nccl_settings(options.nccl_config);
  } catch (const Error& error) {
    need(false, fmt::format("rank {}: {}", options.rank, error.what()));
  }
  probe_settings(options);
  need(!options.job.empty(), "the job's name (TUTTI_JOB) must not be empty");
}

Probe probe_settings(const Options& options) {
  if (!is_probe(options.probe))
    throw Error(ErrorCode::invalid_argument, fmt::format("rank {}: TUTTI_PROBE={} {}", options.rank,
                                                         options.probe, kWantedProbe));
  if (options.probe == "off") return {};
  if (options.probe.starts_with('/')) return {Probe::Mode::when_unknown, options.probe};
  return {options.probe == "always" ? Probe::Mode::always : Probe::Mode::when_unknown,
          options.probe_folder.empty() ? "" : options.probe_folder + "/networks"};
}

std::vector<std::string> backend_folders(const Options& options) {
  if (options.backend_path.empty()) return {};
  return split_text(options.backend_path, ':');
}

Settings backend_settings(const Options& options) {
  Settings values;
  for (const auto& setting : all_settings())
    if (setting.is_of_backends) values[setting.variable] = setting.print(options);
  return values;
}

std::string agreed_settings(const Options& options) {
  std::string text;
  for (const auto& setting : all_settings())
    if (setting.must_agree)
      text +=
          fmt::format("{}{}={}", text.empty() ? "" : " ", setting.variable, setting.print(options));
  return text;
}

std::vector<OptionRow> describe_options(const Options& options) {
  std::vector<OptionRow> rows;
  // Without a launcher the process is rank 0 of 1.
  const auto alone = [](Options some) {
    if (some.rank < 0) some.rank = 0;
    if (some.size < 0) some.size = 1;
    return some;
  };
  const auto defaults = alone({}), shown = alone(options);
  for (const auto& setting : all_settings()) {
    OptionRow row{setting.variable,     setting.unit, setting.print(defaults),
                  setting.print(shown), "default",    setting.meaning};
    const auto source = options.sources.find(setting.variable);
    if (source != options.sources.end())
      row.source = source->second;
    else if (row.value != row.default_value)
      row.source = "program";
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace tutti
