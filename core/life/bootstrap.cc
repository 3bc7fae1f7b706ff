#include "tutti/core/life/bootstrap.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <system_error>

#include "tutti/backends/choice/choice.h"
#include "tutti/backends/network/asio.h"
#include "tutti/backends/plugins.h"
#include "tutti/base/process/limits.h"
#include "tutti/base/text.h"

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

void open_store(const Options& options, Membership& membership) {
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
      membership.root =
          connect_tcp_store(address.host, address.port, options.secret, membership.deadline);
    }
  }
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

// The round of a job is the number of its attempt. All ranks go through the same ones, because an
// attempt is over for all of them or for none.
std::string round_path(const Options& options, int64_t round) {
  return fmt::format("{}/{}", options.job, round);
}

// The first round in which this process may still take part as this rank: it has been through all
// before. Not kept where the store is an object, which may be another one next time.
class FirstRound {
 public:
  explicit FirstRound(const Options& options)
      : key_(options.store_object
                 ? std::string()
                 : fmt::format("{} {} {}", options.store, options.job, options.rank)) {}
  int64_t get() const {
    const std::lock_guard lock(mutex_);
    const auto found = rounds_.find(key_);
    return found == rounds_.end() ? 0 : found->second;
  }
  void set(int64_t round) const {
    if (key_.empty()) return;
    const std::lock_guard lock(mutex_);
    rounds_[key_] = round;
  }

 private:
  const std::string key_;
  static inline std::mutex mutex_;
  static inline std::map<std::string, int64_t> rounds_;  // guarded by mutex_
};

Error two_processes(int rank) {
  return Error(ErrorCode::invalid_argument,
               fmt::format("two processes say that they are rank {}; give each rank its own number "
                           "(TUTTI_RANK), or another TUTTI_JOB to a second job on this store",
                           rank))
      .with_rank(rank);
}

enum class Holder : uint8_t { this_call, this_process, earlier_incarnation, another };

// Which process has this rank's place in an attempt, after this one has asked for it.
Holder take_place(const PlaceRecord& own, int rank, Store& store) {
  const auto written = encode_place(own);
  const auto stands = store.set_once(Attempt::place_key(rank), written);
  if (stands == written) return Holder::this_call;
  PlaceRecord other;
  try {
    other = decode_place(rank, stands);
  } catch (const Error&) {
    return Holder::another;
  }
  if (other.place.pid == own.place.pid && other.place.host == own.place.host)
    return Holder::this_process;
  return other.place.world_rank == own.place.world_rank &&
                 other.place.incarnation < own.place.incarnation
             ? Holder::earlier_incarnation
             : Holder::another;
}

size_t deaths_in(const Options& options, Store& root, int64_t round) {
  if (round < 0) return 0;
  const auto text = root.try_get(round_path(options, round) + "/" + Attempt::kDeathsKey);
  return static_cast<size_t>(text ? parse_integer(*text, 0, 1 << 30).value_or(0) : 0);
}

// For the ranks that wait in it for the process that this one replaces.
void end_round(const Options& options, Store& store) {
  try {
    ToldFailure(store, "attempt", options.rank, options.size)
        .fail(Error(ErrorCode::peer_lost,
                    fmt::format("rank {} ended while the ranks were connecting, and was started "
                                "again",
                                options.rank)));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) throw;
  }
}

// True if no other call of this process, whatever its rank was then, has been in the attempt.
bool is_new_here(const PlaceRecord& own, Store& store) {
  const auto key = fmt::format("been/{}/{}", own.place.world_rank, own.place.incarnation);
  const auto written = fmt::format("{} {}", own.place.pid, own.call);
  return store.set_once(key, written) == written;
}

// Whether the attempt is over. Of a failure this process hears once, even if it comes only now:
// then all ranks call again together. One that the others failed because this rank was missing, or
// that ended the process that it replaces, is for the others.
bool is_over(const Options& options, const PlaceRecord& own, Store& store) {
  try {
    // As none of its ranks, which may have had other numbers then.
    return ToldFailure(store, "attempt", -1, INT_MAX).look();
  } catch (const ToldError& failure) {
    const bool concerns = own.place.incarnation == 0 && failure.rank() != options.rank;
    if (concerns && is_new_here(own, store)) throw Error(failure);
    return true;
  }
}

void take_place_in_a_round(const Options& options, Membership& membership) {
  static std::atomic<int64_t> calls{0};
  auto& own = membership.own;
  own.place = own_place(
      options, {options.launched_as < 0 ? options.rank : options.launched_as, options.incarnation});
  own.call = calls++;
  const FirstRound first(options);
  bool been_through = true;
  for (auto round = first.get();; ++round) {
    if (been_through) first.set(round);
    membership.path = round_path(options, round);
    const auto store = make_prefix_store(membership.root, membership.path + "/");
    if (is_over(options, own, *store)) continue;
    const auto holder = take_place(own, options.rank, *store);
    if (holder == Holder::another) throw two_processes(options.rank);
    if (holder == Holder::this_call) {
      is_new_here(own, *store);
      membership.first_death = deaths_in(options, *membership.root, round - 1);
      return;
    }
    if (holder == Holder::earlier_incarnation) end_round(options, *store);
    // Else another thread of this process is in there: the ranks make their communicators in one
    // order.
    if (holder == Holder::this_process) been_through = false;
  }
}

// Why this rank alone cannot go on: a limit of its own.
Error own_failure(int rank, const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return Error(ErrorCode::out_of_memory,
                 fmt::format("rank {} has no memory left for its connections; {}", rank,
                             limit_advice(ENOMEM)))
        .with_rank(rank);
  int number = 0;
  if (const auto* of_std = dynamic_cast<const std::system_error*>(&error))
    number = of_std->code().value();
  if (const auto* of_asio = dynamic_cast<const boost::system::system_error*>(&error))
    number = of_asio->code().value();
  const auto advice = limit_advice(number);
  return Error(ErrorCode::io, fmt::format("rank {}: {}{}{}{}", rank,
                                          number == EAGAIN ? "cannot start a thread: " : "",
                                          error.what(), advice.empty() ? "" : "; ", advice))
      .with_rank(rank);
}

// All that a backend is to know before its ranks have met.
Context make_context(const Options& options, const Membership& membership) {
  Context context;
  context.rank = options.rank;
  context.size = options.size;
  context.deadline = membership.deadline;
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
  context.tcp_congestion = options.tcp_congestion;
  context.log = log_up_to(options.log_level, options.log);
  return context;
}

}  // namespace

Membership join_job(const Options& options) {
  check_options(options);
  Membership membership;
  membership.deadline = Deadline::after(options.connect_timeout);
  try {
    open_store(options, membership);
    take_place_in_a_round(options, membership);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw own_failure(options.rank, error);
  }
  return membership;
}

std::shared_ptr<Engine> make_engine(const Options& options, const Membership& membership) {
  const auto attempt = Attempt::begin(options, membership);
  std::shared_ptr<Engine> engine;  // outlasts what is told of a failure
  const auto fail = [&](const Error& error) {
    if (engine) engine->abandon();
    attempt->fail(error);
  };
  try {
    auto context = make_context(options, membership);
    context.store = attempt->store();
    const auto plugins =
        load_backends(options.backend, Chooser(options.algorithms, options.determinism),
                      backend_folders(options));
    context.plugins = plugins;
    context.places = attempt->meet();
    options.observe("rendezvous");
    number_places(context, membership);
    context.name =
        options.backend == "auto" ? choose_backend(context.places, options) : options.backend;
    auto backend = connect_choice(context);
    context.plugins = {};
    context.inheritance = nullptr;
    // A fork that destroys its last handle leaves the thread, the sockets and the rings alone.
    engine = {new Engine(options, std::move(context), std::move(backend), membership.root),
              DeleteWhereMade<Engine>()};
    engine->prepare();
    options.observe("connected");
    attempt->all_connected();
  } catch (const Error& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(own_failure(options.rank, error));
  }
  engine->start();
  return engine;
}

}  // namespace tutti
