// The only file of the library that reads the environment.

#include "tutti/core/settings/options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tutti/backends/network/asio.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/base/process/fork_guard.h"
#include "tutti/base/text.h"
#include "tutti/core/launch/exchange.h"
#include "tutti/core/launch/meeting.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/settings/store_options.h"

namespace tutti {

namespace {

constexpr size_t kLongestSecret = 4096;

// Things that a process can read only once. The secret is removed from the environment after it was
// read, a descriptor is closed, and PMI's exchange cannot be repeated. Like the environment, these
// things belong to the whole process.
struct LearntOnce {
  std::mutex mutex;
  std::optional<std::pair<std::string, std::string>> secret;  // the secret and its variable
  pid_t secret_taker = 0;                                     // the process that read it
  std::optional<MeetingPlace> place;
  std::shared_ptr<TcpStoreServer> server;  // runs on rank 0, for all communicators of the process
  OwnedWhereMade<PrivateFile> file;
  // Kept until the process ends, because MPI cannot connect to the launcher again after it was
  // finalized.
  OwnedWhereMade<PmixClient> pmix;

  // OpenSSL cleans up when the process ends. The server must be destroyed before that. Objects that
  // are set up first are destroyed last, so this constructor sets up OpenSSL.
  LearntOnce() { ::OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CRYPTO_STRINGS, nullptr); }
};

LearntOnce& learnt_once() {
  static LearntOnce learnt;
  return learnt;
}

Environment read_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    if (const auto equals = line.find('='); equals != line.npos)
      environment.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return environment;
}

// Removes a variable, and also erases its value from the memory that /proc/self/environ shows.
void forget_variable(const char* variable) {
  if (char* value = std::getenv(variable)) std::fill_n(value, std::strlen(value), '\0');
  ::unsetenv(variable);
}

// Reads the whole content of a file, or a pipe to its end. An earlier reader may have left the
// file's position anywhere.
std::string read_secret(const std::string& word) {
  const auto refused = [&](const std::string& why) {
    return Error(
        ErrorCode::invalid_argument,
        fmt::format("TUTTI_SECRET_FD={} {}; tutti-run hands over such a descriptor", word, why));
  };
  const auto number = parse_integer(word, 0, 1 << 30);
  if (!number) throw refused("is not a descriptor");
  const Descriptor descriptor(static_cast<int>(*number));
  const auto deadline = Deadline::after(5);
  std::string secret;
  char bytes[512];
  while (secret.size() <= kLongestSecret) {
    auto got = ::pread(descriptor.get(), bytes, sizeof bytes, static_cast<off_t>(secret.size()));
    if (got < 0 && errno == ESPIPE) {
      pollfd entry{descriptor.get(), POLLIN, 0};
      if (::poll(&entry, 1, deadline.poll_milliseconds()) == 0)
        throw refused("gave no secret within 5 s");
      got = ::read(descriptor.get(), bytes, sizeof bytes);
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw refused(fmt::format("cannot be read ({})", std::strerror(errno)));
    if (got == 0) break;
    secret.append(bytes, static_cast<size_t>(got));
  }
  if (secret.empty() || secret.size() > kLongestSecret)
    throw refused(
        fmt::format("held {} bytes, but a secret has 1 to {}", secret.size(), kLongestSecret));
  return secret;
}

void take_secret(const Environment& environment, LearntOnce& learnt) {
  const auto descriptor = environment.find("TUTTI_SECRET_FD");
  const auto value = environment.find("TUTTI_SECRET");
  if (descriptor != environment.end())
    learnt.secret.emplace(read_secret(descriptor->second), descriptor->first);
  else if (value != environment.end() && value->second.empty())
    throw Error(ErrorCode::invalid_argument, "TUTTI_SECRET= is empty; set it to any text");
  else if (value != environment.end())
    learnt.secret.emplace(value->second, value->first);
  if (descriptor != environment.end() || value != environment.end())
    learnt.secret_taker = ::getpid();
  forget_variable("TUTTI_SECRET_FD");
  forget_variable("TUTTI_SECRET");
}

// Returns the folder for data that can be recreated. It is empty if the user has no such folder.
std::string cache_folder(const Environment& environment) {
  const auto value = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  const auto cache = value("XDG_CACHE_HOME"), home = value("HOME");
  if (cache.starts_with('/')) return cache + "/tutti";
  return home.starts_with('/') ? home + "/.cache/tutti" : "";
}

// Serves the store on rank 0, at any free address, with a new secret.
MeetingPlace open_store(const Options& options, LearntOnce& learnt) {
  const auto address =
      serving_address(options.network_interface, options.local_size == options.size);
  const auto secret = random_secret();
  learnt.server =
      std::make_shared<TcpStoreServer>(address, 0, secret, log_up_to(options.log_level, nullptr));
  return {store_url(address, learnt.server->port()), secret};
}

// Returns whether the host's name leads to loopback only. A host's own name often resolves to
// loopback on that host, but not on others.
bool is_loopback_only_here(const std::string& host) {
  ErrorStatus status;
  asio::ip::make_address(host, status);
  if (!status || host == "localhost") return false;
  asio::io_context io(1);
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, "", status);
  return !status && !found.empty() && found.begin()->endpoint().address().is_loopback();
}

// Lets the ranks meet at an address that all know from the launcher. Rank 0 serves the store at
// this address.
MeetingPlace meet_at_address(const Options& options, const LauncherInfo& launch,
                             LearntOnce& learnt) {
  const auto secret = options.secret.empty() ? launch.public_secret : options.secret;
  if (options.rank != 0) return {store_url(launch.host, launch.port), secret};
  try {
    const bool is_useless = options.local_size < options.size && is_loopback_only_here(launch.host);
    const auto address =
        is_useless ? serving_address(options.network_interface, false) : launch.host;
    learnt.server = std::make_shared<TcpStoreServer>(address, launch.port, secret,
                                                     log_up_to(options.log_level, nullptr));
    return {store_url(address, learnt.server->port()), secret};
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}; {} names this address, TUTTI_STORE another",
                                          error.what(), launch.launcher));
  }
}

std::string private_folder(const Environment& environment) {
  const auto home = environment.find("HOME");
  if (home == environment.end() || home->second.empty())
    throw Error(
        ErrorCode::invalid_argument,
        "HOME is missing, where ranks of a Slurm step meet; set it, use srun --mpi=pmi2, or "
        "set TUTTI_SECRET");
  return home->second + "/.tutti";
}

MeetingPlace meet(const Options& options, const LauncherInfo& launch,
                  const Environment& environment, LearntOnce& learnt) {
  const auto deadline = Deadline::after(options.connect_timeout);
  const auto own = [&] {
    return options.rank == 0 ? encode_meeting_place(open_store(options, learnt)) : std::string();
  };
  switch (launch.meeting) {
    case Meeting::pmix:
      return decode_meeting_place(learnt.pmix->share(own(), deadline));
    case Meeting::pmi:
      return decode_meeting_place(
          share_over_pmi(launch.pmi_descriptor, options.rank, own(), deadline));
    case Meeting::address:
      return meet_at_address(options, launch, learnt);
    case Meeting::file: {
      const auto folder = private_folder(environment);
      if (options.rank != 0)
        return decode_meeting_place(read_private_file(folder, launch.file, deadline));
      const auto text = own();
      learnt.file = OwnedWhereMade<PrivateFile>(new PrivateFile(folder, launch.file, text));
      return decode_meeting_place(text);
    }
    case Meeting::none:
    case Meeting::given:
      break;
  }
  return {options.store, options.secret};
}

// Finds the store of tutti-run, the only launcher that serves one itself.
void find_launcher_store(const Environment& environment, const LearntOnce& learnt,
                         Options& options) {
  const auto url = environment.find("TUTTI_STORE"), rank = environment.find("TUTTI_RANK");
  // A fork of the rank's process is not a rank of tutti-run.
  if (!learnt.secret || learnt.secret_taker != ::getpid() || url == environment.end() ||
      rank == environment.end() || !url->second.starts_with("tcp://") ||
      environment.contains("TUTTI_SERVE_STORE"))
    return;
  if (const auto number = parse_integer(rank->second, 0, INT_MAX))
    options.launcher_store = {url->second, learnt.secret->first, static_cast<int>(*number)};
}

// Makes sure that there is a secret. If the program gave a store, it must give a secret too. The
// ranks may leave a secret for each other in two kinds of store: a folder that only one user can
// read, and a store object of the program.
void need_secret(Options& options) {
  if (options.size == 1 || !options.secret.empty()) return;
  auto store = options.store_object;
  if (!store && options.store.starts_with("file://"))
    store = make_file_store(options.store.substr(7));
  if (!store)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("TUTTI_STORE={} needs a secret, but TUTTI_SECRET is missing (any text, "
                            "the same on every rank)",
                            options.store));
  options.secret = store->set_once(options.job + "/secret", random_secret());
  options.sources["TUTTI_SECRET"] = options.store_object ? "the program's store" : "TUTTI_STORE";
}

LauncherInfo ask_launcher(const Environment& environment, LearntOnce& learnt) {
  auto launch = detect_launcher(environment);
  if ((launch.meeting == Meeting::pmix || launch.sizes_from_pmix) && !learnt.pmix)
    learnt.pmix = OwnedWhereMade<PmixClient>(new PmixClient);
  if (launch.sizes_from_pmix) {
    launch.size = learnt.pmix->size();
    launch.local_rank = learnt.pmix->local_rank();
    launch.local_size = learnt.pmix->local_size();
    for (const auto* name : {"TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE"})
      launch.sources[name] = "PMIx";
  }
  return launch;
}

constexpr std::pair<const char*, int Options::*> kPlace[] = {
    {"TUTTI_RANK", &Options::rank},
    {"TUTTI_SIZE", &Options::size},
    {"TUTTI_LOCAL_RANK", &Options::local_rank},
    {"TUTTI_LOCAL_SIZE", &Options::local_size}};

bool has_store(const Options& options) { return options.store_object || !options.store.empty(); }

// Sets rank, size, local rank and local size, unless the program has set them.
void take_place(const LauncherInfo& launch, const Environment& environment, Options& options) {
  if (launch.launcher == "none" && has_store(options))
    throw Error(ErrorCode::invalid_argument,
                "the program gives a store, but nothing says which rank this is: no launcher "
                "started this process, and rank and size are missing");
  const int of_launcher[] = {launch.rank, launch.size, launch.local_rank, launch.local_size};
  for (size_t i = 0; i < std::size(kPlace); ++i) {
    const auto& [variable, field] = kPlace[i];
    if (is_set(options, variable)) continue;
    options.*field = of_launcher[i];
    const auto source = launch.sources.find(variable);
    if (source != launch.sources.end())
      options.sources[variable] = source->second;
    else if (environment.contains(variable))
      options.sources[variable] = "environment";
  }
  options.launcher = launch.launcher;
  options.launched_as = launch.rank;
}

}  // namespace

// For each field, the program's value comes first, then the environment's, then the default.
Options complete_options(Options options) {
  if (!options.launcher.empty()) return options;
  auto environment = read_environment();
  auto& learnt = learnt_once();
  const std::lock_guard lock(learnt.mutex);
  Options unused;
  read_settings(environment, unused);  // throws for an invalid value before any launcher is asked
  const bool is_alone = options.size == 1;
  const bool knows_its_place = is_alone || (options.rank >= 0 && options.size >= 0);
  LauncherInfo launch;
  if (!knows_its_place) launch = ask_launcher(environment, learnt);
  take_secret(environment, learnt);
  find_launcher_store(environment, learnt, options);
  const bool launcher_serves =
      environment.contains("TUTTI_RANK") && !environment.contains("TUTTI_SERVE_STORE");
  if (knows_its_place) {
    if (is_alone && options.rank < 0) options.rank = 0;
    options.launcher = "explicit";
  } else {
    take_place(launch, environment, options);
  }

  const bool meets_elsewhere = has_store(options) || (is_alone && knows_its_place);
  for (const auto& [variable, field] : kPlace) environment.erase(variable);
  if (meets_elsewhere)
    for (const auto* variable : {"TUTTI_STORE", "TUTTI_SERVE_STORE"}) environment.erase(variable);
  fill_settings(environment, options);
  if (options.probe_folder.empty()) options.probe_folder = cache_folder(environment);
  if (learnt.secret && options.secret.empty()) {
    options.secret = learnt.secret->first;
    options.sources[learnt.secret->second] = "environment";
  }

  if (!meets_elsewhere && !options.store.empty()) {
    // Only tutti-run serves the store itself.
    if (!launcher_serves && !environment.contains("TUTTI_SERVE_STORE"))
      options.serve_store = options.store.starts_with("tcp://");
    else if (knows_its_place)
      options.launched_as = options.launcher_store.rank;
    need_secret(options);
  } else if (!meets_elsewhere && launch.size > 1) {
    if (!learnt.place) learnt.place = meet(options, launch, environment, learnt);
    options.store = learnt.place->store;
    options.secret = learnt.place->secret;
    options.sources["TUTTI_STORE"] = launch.launcher;
    options.sources.emplace("TUTTI_SECRET", launch.launcher);
  } else if (options.store_object || !knows_its_place) {
    need_secret(options);
  }
  check_options(options);
  return options;
}

Options Options::from_environment() { return complete_options({}); }

Options Options::thread_rank(int rank, int size, std::shared_ptr<Store> store) {
  Options options;
  options.rank = options.local_rank = rank;
  options.size = options.local_size = size;
  options.launcher = "explicit";
  options.store_object = std::move(store);
  check_options(options);
  return options;
}

Options options_in_store(int rank, int size, std::shared_ptr<Store> store) {
  Options options;
  options.rank = options.local_rank = rank;
  options.size = options.local_size = size;
  options.store_object = std::move(store);
  return options;
}

}  // namespace tutti
