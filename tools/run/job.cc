#include "tools/run/job.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "tutti/backends/network/network_interface.h"
#include "tutti/base/error.h"
#include "tutti/core/launch/meeting.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/watch/death.h"

namespace tutti::run {

namespace {

std::string own_host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

bool is_this_host(const std::string& name) {
  if (name == "localhost" || name == own_host_name()) return true;
  for (const auto& entry : interface_addresses())
    if (entry.address.to_string() == name) return true;
  return false;
}

// Blocked in all threads, so that they come by the descriptor only.
Descriptor make_signal_descriptor() {
  ::signal(SIGPIPE, SIG_IGN);  // a reader that left, like head, is no reason to end
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::sigaddset(&set, number);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  Descriptor descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor) throw system_error("cannot watch signals", errno);
  return descriptor;
}

bool is_setting(const std::string& name) { return name.starts_with("TUTTI_"); }

// What all ranks get beside what their host gives them: the settings of this environment, which are
// checked here because one line is better than one of each rank, and what --env asks for.
Variables shared_variables(const Request& request, const Variables& own) {
  Variables shared;
  for (const auto& [name, value] : own)
    if (is_setting(name)) shared[name] = value;
  for (const auto& word : request.variables) {
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    const auto here = own.find(name);
    if (equals == word.npos && here == own.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--env {}: there is no such variable here; write --env {}=VALUE",
                              name, name));
    shared[name] = equals == word.npos ? here->second : word.substr(equals + 1);
  }
  for (const char* name : {"TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE",
                           "TUTTI_STORE", "TUTTI_SERVE_STORE", "TUTTI_SECRET", "TUTTI_SECRET_FD"})
    shared.erase(name);
  if (!request.timeline.empty()) shared["TUTTI_TIMELINE"] = request.timeline;
  Options checked;
  read_settings(Environment(shared.begin(), shared.end()), checked);
  return shared;
}

void place_variables(Variables& variables, const Seat& place, size_t size) {
  variables["TUTTI_RANK"] = std::to_string(place.rank);
  variables["TUTTI_SIZE"] = std::to_string(size);
  variables["TUTTI_LOCAL_RANK"] = std::to_string(place.local_rank);
  variables["TUTTI_LOCAL_SIZE"] = std::to_string(place.local_size);
}

}  // namespace

Job::Job(const Request& request)
    : secret_(random_secret()),
      secret_file_(hand_over_secret(secret_)),
      signals_(make_signal_descriptor()) {
  auto hosts = parse_hosts(request.hosts);
  if (!request.hosts_given) hosts.front().slots = request.ranks;
  std::vector<bool> here;
  for (const auto& host : hosts) here.push_back(is_this_host(host.name));
  const bool one_host = std::find(here.begin(), here.end(), false) == here.end();
  const auto address = serving_address(request.network_interface, one_host);
  server_ = std::make_unique<TcpStoreServer>(address, 0, secret_);
  store_ = server_->local();
  start_ranks(request, hosts, here, store_url(address, server_->port()));
}

void Job::start_ranks(const Request& request, const std::vector<Host>& hosts,
                      const std::vector<bool>& here, const std::string& store) {
  const auto own = own_variables();
  auto shared = shared_variables(request, own);
  const bool colour = ::isatty(STDOUT_FILENO) && !own.contains("NO_COLOR");
  const auto places = place_ranks(hosts, request.ranks);
  shared["TUTTI_STORE"] = store;
  deaths_ = std::make_unique<Deaths>(static_cast<int>(places.size()), request.keep_going);

  for (const auto& place : places) {
    const auto& host = hosts[static_cast<size_t>(place.host)];
    auto variables = shared;
    place_variables(variables, place, places.size());
    const bool remote = !here[static_cast<size_t>(place.host)];
    Command command;
    command.variables = own;
    if (remote) {
      command.arguments = request.remote_shell;
      command.arguments.push_back(host.name);
      command.arguments.push_back(
          shell_quote(std::filesystem::read_symlink("/proc/self/exe").string()));
      command.arguments.push_back("--remote-rank");
      command.has_input = true;
    } else {
      std::erase_if(command.variables, [](const auto& entry) { return is_setting(entry.first); });
      for (const auto& [name, value] : variables) command.variables[name] = value;
      command.arguments = request.program;
      command.inherited = secret_file_.get();
      command.variables["TUTTI_SECRET_FD"] = std::to_string(secret_file_.get());
    }
    const auto prefix =
        request.bare_first_rank && place.rank == 0 ? "" : rank_prefix(place.rank, colour);
    ranks_.push_back(std::make_unique<Rank>(place.rank, remote ? host.name : own_host_name(),
                                            Child(command), remote, prefix));
    if (!remote) continue;
    const StartRequest start{secret_, std::filesystem::current_path().string(), variables,
                             request.program};
    write_all(ranks_.back()->child().input.get(),
              encode_frame(FrameKind::start, encode_start(start)), Deadline::after(10));
  }
}

int Job::run() {
  while (!deaths_->all_ended()) wait_for_events();
  report();
  return deaths_->exit_code();
}

void Job::wait_for_events() {
  std::vector<pollfd> entries{{signals_.get(), POLLIN, 0}};
  std::vector<Rank*> owners{nullptr};
  const auto watch = [&](Rank* rank, int descriptor) {
    entries.push_back({descriptor, POLLIN, 0});
    owners.push_back(rank);
  };
  for (const auto& rank : ranks_) {
    if (deaths_->has_ended(rank->number())) continue;
    auto& child = rank->child();
    watch(rank.get(), child.output ? child.output.get() : -1);
    watch(rank.get(), child.errors ? child.errors.get() : -1);
    watch(rank.get(), child.descriptor());
  }
  if (::poll(entries.data(), entries.size(), deaths_->next().poll_milliseconds()) < 0 &&
      errno != EINTR)
    throw system_error("cannot wait for the ranks", errno);
  // Three entries for each rank; its end comes after its output.
  for (size_t i = 1; i < entries.size(); i += 3) {
    auto& rank = *owners[i];
    if (entries[i].revents) rank.take_output();
    if (entries[i + 1].revents) rank.take_errors();
    if (entries[i + 2].revents) take_end(rank);
  }
  if (entries[0].revents) take_signals();
  if (const int number = deaths_->due(Clock::now())) signal_all(number);
}

void Job::take_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    signal_all(number);
    if (number != SIGUSR1 && number != SIGUSR2) deaths_->asked_to_end(number, Clock::now());
  }
}

void Job::take_end(Rank& rank) {
  const auto end = rank.finish();
  if (end.failed()) {
    const Death death{.rank = rank.number(),
                      .pid = rank.pid(),
                      .signal = end.signal,
                      .code = end.code,
                      .host = rank.host()};
    store_->set(death_key(rank.number()), encode_death(death));
  }
  deaths_->ended(rank.number(), end, Clock::now());
}

void Job::signal_all(int number) {
  for (const auto& rank : ranks_)
    if (!deaths_->has_ended(rank->number())) rank->signal(number);
}

void Job::report() const {
  const auto first = deaths_->first_failure();
  if (!first) return;
  const auto& rank = *ranks_[static_cast<size_t>(*first)];
  std::string text = "tutti-run: ";
  if (deaths_->asked_signal() != 0)
    text += fmt::format("ended by signal {}; ", deaths_->asked_signal());
  text += rank.failure().empty()
              ? fmt::format("rank {} (host {}, pid {}) {}", rank.number(), rank.host(), rank.pid(),
                            deaths_->end_of(*first)->text())
              : fmt::format("rank {} (host {}) could not be run: {}", rank.number(), rank.host(),
                            rank.failure());
  if (deaths_->failures() > 1) text += fmt::format(", the first of {}", deaths_->failures());
  const auto lines = rank.last_lines().lines();
  text += lines.empty() ? ". It wrote nothing.\n" : ". Its last lines:\n";
  for (const auto& line : lines) text += fmt::format("  {}\n", line);
  write_all(STDERR_FILENO, text);
}

}  // namespace tutti::run
