#include "tutti/core/life/bootstrap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "tutti/backends/choice/choice.h"
#include "tutti/backends/plugins.h"
#include "tutti/base/cores.h"
#include "tutti/base/text.h"
#include "tutti/core/settings/version.h"
#include "tutti/core/watch/death.h"
#include "tutti/core/watch/watched_store.h"

namespace tutti {

namespace {

struct Address {
  std::string host;
  int port = 0;
};

// "tcp://host:port", "tcp://[::1]:port"
Address parse_address(const std::string& url) {
  constexpr std::string_view kScheme = "tcp://";
  const auto colon = url.rfind(':');
  const auto port =
      colon == url.npos ? std::nullopt : parse_integer(url.substr(colon + 1), 1, 65535);
  if (!url.starts_with(kScheme) || colon <= kScheme.size() || !port)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("TUTTI_STORE={} is not the address of a store (want tcp://host:port or "
                            "file:///folder)",
                            url));
  std::string host = url.substr(kScheme.size(), colon - kScheme.size());
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return {host, static_cast<int>(*port)};
}

// Ranks of one boot, one network namespace: only those can share memory and a Unix socket.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return boot;
}

std::string host_identity(const Options& options) {
  if (!options.host.empty()) return options.host;
  struct stat status {};
  const auto space = ::stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
  return fmt::format("{}/{}", boot_id(), space);
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// The settings that must be equal on all ranks, as one text.
std::string agreement(const Options& options) {
  return fmt::format(
      "TUTTI_BACKEND={} TUTTI_ALGORITHMS={} TUTTI_DETERMINISM={} TUTTI_SEGMENT_BYTES={} "
      "TUTTI_FUSION_BYTES={} TUTTI_PARTITION_BYTES={} TUTTI_CACHE_CAPACITY={} TUTTI_REPLAY={} "
      "TUTTI_REPLAY_AFTER={} TUTTI_PROBE={} TUTTI_TCP_SOCKETS={} TUTTI_NCCL_CONFIG={}",
      options.backend, options.algorithms, static_cast<int>(options.determinism),
      options.segment_bytes, options.fusion_bytes, options.partition_bytes, options.cache_capacity,
      options.replay, options.replay_after, options.probe, options.tcp_sockets,
      options.nccl_config);
}

// In the place of a rank that cannot take part, before the reason: nobody need wait for it.
constexpr std::string_view kFailed = "failed";

std::string encode_place(const Place& place, const Options& options) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", kVersion, agreement(options), place.host,
                     place.host_name, place.pid, place.world_rank, fmt::join(place.cores, " "),
                     place.machine);
}

Place decode_place(int rank, const std::string& text, const Options& options) {
  const auto lines = split_text(text, '\n');
  if (lines.at(0) != kVersion)
    throw Error(
        ErrorCode::version,
        fmt::format("rank {} runs version {} of the library, rank {} runs {}; all ranks must "
                    "run one version",
                    rank, lines[0], options.rank, kVersion))
        .with_rank(rank);
  if (lines.size() == 3 && lines[1] == kFailed)
    throw Error(ErrorCode::unavailable, fmt::format("rank {}: {}", rank, lines[2])).with_rank(rank);
  if (lines.size() != 8)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("rank {} wrote something into the store that is no rank's place", rank));
  if (lines[1] != agreement(options)) {
    const auto theirs = split_text(lines[1], ' '), ours = split_text(agreement(options), ' ');
    for (size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i)
      if (theirs[i] != ours[i])
        throw Error(ErrorCode::mismatch,
                    fmt::format("rank {} has {}, rank {} has {}; all ranks must have one setting",
                                rank, theirs[i], options.rank, ours[i]))
            .with_rank(rank);
  }
  Place place{lines[2], lines[3], 0, 0};
  for (const auto& word : split_text(lines[6], ' '))
    if (const auto core = parse_integer(word, 0, 1 << 20))
      place.cores.push_back(static_cast<int>(*core));
  place.machine = lines[7];
  place.pid = static_cast<int>(parse_integer(lines[4], 0, 1 << 30).value_or(0));
  place.world_rank = static_cast<int>(parse_integer(lines[5], 0, 1 << 30).value_or(0));
  return place;
}

std::string place_key(int rank) { return fmt::format("place/{}", rank); }

std::vector<Place> exchange_places(const Options& options, const Membership& membership,
                                   Store& store, Deadline deadline) {
  const Place own{host_identity(options),
                  host_name(),
                  static_cast<int>(::getpid()),
                  membership.world_ranks[static_cast<size_t>(options.rank)],
                  usable_cores(),
                  boot_id()};
  const auto written = encode_place(own, options);
  if (store.set_once(place_key(options.rank), written) != written)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("two processes say that they are rank {}; give each rank its own number "
                    "(TUTTI_RANK), or another TUTTI_JOB to a second job on this store",
                    options.rank))
        .with_rank(options.rank);
  std::vector<Place> places;
  for (int rank = 0; rank < options.size; ++rank) {
    std::string text;
    try {
      text = store.get(place_key(rank), deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      std::vector<int> missing;
      for (int other = rank; other < options.size; ++other)
        if (!store.try_get(place_key(other))) missing.push_back(other);
      throw Error(ErrorCode::timeout,
                  fmt::format("rank {} waited {} s for {} of {} to start; did it die, or is "
                              "TUTTI_CONNECT_TIMEOUT too short?",
                              options.rank, options.connect_timeout, format_rank_set(missing),
                              options.size))
          .with_rank(missing.empty() ? rank : missing.front());
    }
    places.push_back(decode_place(rank, text, options));
  }
  return places;
}

// Each rank's number among those of its host in the job.
void number_places(Context& context, const Membership& membership) {
  const auto hosts = context.hosts();
  for (size_t i = 0; i < hosts.size(); ++i)
    context.places[i].local_rank =
        membership.local_ranks.empty()
            ? static_cast<int>(std::count(hosts.begin(),
                                          hosts.begin() + static_cast<std::ptrdiff_t>(i), hosts[i]))
            : membership.local_ranks[i];
}

// What `auto` means.
std::string_view choose_backend(const std::vector<Place>& places, const Options& options) {
  std::set<std::string> hosts;
  std::set<int> processes;
  for (const auto& place : places) {
    hosts.insert(place.host);
    processes.insert(place.pid);
  }
  if (hosts.size() == 1 && processes.size() == 1 && (options.store_object || places.size() == 1))
    return "memory";
  if (hosts.size() == 1) return "shm";
  return hosts.size() == places.size() ? "tcp" : "hierarchical";
}

// The built-in backends and those that are asked for. If this rank lacks one, or cannot read what
// it is asked for, the others hear why.
std::vector<const BackendPlugin*> load_wanted_backends(const Options& options, Store& store) {
  try {
    return load_backends(options.backend, Chooser(options.algorithms, options.determinism),
                         backend_folders(options));
  } catch (const Error& error) {
    store.set_once(place_key(options.rank),
                   fmt::format("{}\n{}\n{}", kVersion, kFailed, error.what()));
    throw;
  }
}

// Who could not connect, and because of whom: "rank code text".
std::string failure_key(int rank) { return fmt::format("connect/failure/{}", rank); }

struct Failure {
  int rank = -1;
  ErrorCode code = ErrorCode::internal;
  std::string text;
};

std::optional<Failure> parse_failure(const std::string& told, int size) {
  const auto words = split_text(told, ' ');
  if (words.size() < 3) return std::nullopt;
  const auto rank = parse_integer(words[0], 0, size - 1);
  const auto code = parse_integer(words[1], 1, 16);
  if (!rank || !code) return std::nullopt;
  return Failure{static_cast<int>(*rank), static_cast<ErrorCode>(*code),
                 told.substr(words[0].size() + words[1].size() + 2)};
}

// A rank that gives up because of another one ends too, and a third may see that end first. So each
// says why it gives up, and who blames another looks whom that one has blamed, and so on.
Error find_cause(const Context& context, const Membership& membership, const Error& seen) {
  const bool blames = seen.code() == ErrorCode::peer_lost || seen.code() == ErrorCode::unavailable;
  if (!blames || seen.rank() < 0 || seen.rank() == context.rank) return seen;
  Error cause = seen;
  try {
    auto& store = *membership.store;
    store.set(failure_key(context.rank),
              fmt::format("{} {} {}", seen.rank(), static_cast<int>(seen.code()), seen.what()));
    const auto deadline = Deadline::after(0.3);
    for (int links = 0; links < context.size && !deadline.passed();) {
      const auto death = death_key(membership.world_ranks[static_cast<size_t>(cause.rank())]);
      // In this order: it says so before it ends.
      const bool is_dead = membership.root->try_get(death).has_value();
      const auto told = store.try_get(failure_key(cause.rank()));
      if (told) {
        const auto failure = parse_failure(*told, context.size);
        if (!failure || failure->rank == context.rank) return cause;
        cause = Error(failure->code, failure->text).with_rank(failure->rank);
        ++links;
      } else if (is_dead) {
        return cause;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  } catch (const Error&) {
    // The store died with that rank.
  }
  return cause;
}

// How often this process has joined this job as this rank. The ranks of a job make their
// communicators in one order, and each needs keys of its own in a store that keeps the old ones.
int count_joining(const Options& options) {
  static std::mutex mutex;
  static std::map<std::string, int> counts;
  const std::lock_guard lock(mutex);
  return counts[fmt::format("{} {} {}", options.store, options.job, options.rank)]++;
}

}  // namespace

Membership join_job(const Options& options) {
  check_options(options);
  Membership membership;
  membership.world_ranks.resize(static_cast<size_t>(options.size));
  std::iota(membership.world_ranks.begin(), membership.world_ranks.end(), 0);
  if (options.store_object) {
    membership.root = options.store_object;
  } else if (options.size == 1 && options.store.empty()) {
    membership.root = make_memory_store();
  } else if (options.store.starts_with("file://")) {
    membership.root = make_file_store(options.store.substr(7));
  } else {
    const auto address = parse_address(options.store);
    if (options.serve_store && options.rank == 0) {
      auto server = std::make_shared<TcpStoreServer>(address.host, address.port, options.secret,
                                                     log_up_to(options.log_level, options.log));
      membership.root = server->local();
      membership.keeper = server;
    } else {
      membership.root = connect_tcp_store(address.host, address.port, options.secret,
                                          Deadline::after(options.connect_timeout));
    }
  }
  // Whoever hands over a store of its own decides what is in it.
  const int number = options.store_object ? 0 : count_joining(options);
  membership.path = fmt::format("{}/{}", options.job, number);
  membership.store = make_prefix_store(membership.root, membership.path + "/");
  return membership;
}

std::shared_ptr<Engine> make_engine(const Options& options, const Membership& membership) {
  Context context;
  context.rank = options.rank;
  context.size = options.size;
  context.store = make_watched_store(membership.store, membership.root, membership.world_ranks);
  context.deadline = Deadline::after(options.connect_timeout);
  const auto plugins = load_wanted_backends(options, *context.store);
  context.places = exchange_places(options, membership, *context.store, context.deadline);
  options.observe("rendezvous");
  number_places(context, membership);
  context.inheritance = membership.inheritance;
  context.secret = options.secret;
  context.network_interface = options.network_interface;
  context.tcp_sockets = options.tcp_sockets;
  context.tcp_congestion = options.tcp_congestion;
  context.determinism = options.determinism;
  context.algorithms = options.algorithms;
  context.library = options.backend_library;
  context.probe = probe_settings(options);
  context.nccl_config = options.nccl_config;
  context.executor.segment_bytes = options.segment_bytes;
  context.plugins = plugins;
  context.log = log_up_to(options.log_level, options.log);
  context.name =
      options.backend == "auto" ? choose_backend(context.places, options) : options.backend;
  std::unique_ptr<Backend> backend;
  try {
    backend = connect_choice(context);
  } catch (const Error& error) {
    throw find_cause(context, membership, error);
  }
  context.plugins = {};
  context.inheritance = nullptr;
  // A fork that destroys its last handle leaves the thread, the sockets and the rings alone.
  return {new Engine(options, std::move(context), std::move(backend), membership.root),
          DeleteWhereMade<Engine>()};
}

}  // namespace tutti
