#include "tutti/core/meeting/bootstrap.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <set>
#include <system_error>
#include <utility>

#include "tutti/backends/choice/choice.h"
#include "tutti/backends/network/asio.h"
#include "tutti/backends/plugins.h"
#include "tutti/base/process/limits.h"
#include "tutti/collectives/chooser.h"
#include "tutti/core/launch/meeting.h"
#include "tutti/core/meeting/rounds.h"
#include "tutti/core/meeting/served_store.h"
#include "tutti/core/settings/option_table.h"

namespace tutti {

namespace {

void open_store(const Options& options, Membership& membership) {
  if (options.store_object) {
    membership.root = options.store_object;
  } else if (options.size == 1 && options.store.empty()) {
    membership.root = make_memory_store();
  } else if (options.store.starts_with("file://")) {
    membership.root = make_file_store(options.store.substr(7));
  } else {
    const auto address = parse_store_url(options.store);
    if (options.serve_store && options.rank == 0) {
      auto served = serve_store(options, address.host, address.port);
      membership.root = std::move(served.store);
      membership.listener = std::move(served.listener);
    } else {
      membership.root =
          connect_tcp_store(address.host, address.port, options.secret, membership.deadline);
    }
  }
}

// Sets for each rank its index among the job's ranks on its host.
void number_places(Context& context, const Membership& membership) {
  const auto hosts = context.hosts();
  for (size_t i = 0; i < hosts.size(); ++i)
    context.places[i].local_rank =
        membership.local_ranks.empty()
            ? static_cast<int>(std::count(hosts.begin(),
                                          hosts.begin() + static_cast<std::ptrdiff_t>(i), hosts[i]))
            : membership.local_ranks[i];
}

// Returns the backend that the setting `auto` chooses.
std::string_view choose_backend(const std::vector<Place>& places, const Options& options) {
  std::set<std::string> hosts;
  std::set<std::pair<int64_t, int>> processes;
  for (const auto& place : places) {
    hosts.insert(place.host);
    processes.insert({place.pid_space, place.pid});
  }
  // If all ranks use the same GPU, they can share its memory.
  const auto& device = places.front().device;
  if (hosts.size() == 1 && !device.empty() &&
      std::all_of(places.begin(), places.end(),
                  [&](const Place& place) { return place.device == device; }))
    return "peer";
  if (hosts.size() == 1 && processes.size() == 1 && (options.store_object || places.size() == 1))
    return "memory";
  if (hosts.size() == 1) return "shm";
  return hosts.size() == places.size() ? "tcp" : "hierarchical";
}

// Converts an exception to the error of a rank that has reached one of its own limits.
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

// Sets everything that a backend may know before its ranks have met.
Context make_context(const Options& options, const Membership& membership) {
  Context context;
  context.rank = options.rank;
  context.size = options.size;
  context.deadline = membership.deadline;
  context.inheritance = membership.inheritance;
  context.secret = options.secret;
  context.network_interface = options.network_interface;
  context.determinism = options.determinism;
  context.algorithms = options.algorithms;
  context.settings = backend_settings(options);
  context.probe = probe_settings(options);
  context.executor.segment_bytes = options.segment_bytes;
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
    enter_round(options, membership);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw own_failure(options.rank, error);
  }
  return membership;
}

std::shared_ptr<Engine> make_engine(const Options& options, const Membership& membership) {
  const auto attempt = Attempt::begin(options, membership);
  std::shared_ptr<Engine> engine;  // lives longer than the report of a failure
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
    context.store = nullptr;
    // If a forked child destroys its last handle, the thread, the sockets and the rings are not
    // touched.
    engine = {new Engine(options, std::move(context), std::move(backend),
                         std::make_unique<DeathReader>(membership.root)),
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
