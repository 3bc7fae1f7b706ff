#include "tools/run/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "tools/run/share.h"
#include "tutti/backends/network/network_interface.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
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

bool is_setting(const std::string& name) { return name.starts_with("TUTTI_"); }

// Returns the variables that all ranks get, apart from those of their host: this environment's
// settings and those of --env. The settings are checked here, so that a bad one is reported once
// and not by each rank.
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

void seat_variables(Variables& variables, const Seat& seat, size_t size) {
  variables["TUTTI_RANK"] = std::to_string(seat.rank);
  variables["TUTTI_SIZE"] = std::to_string(size);
  variables["TUTTI_LOCAL_RANK"] = std::to_string(seat.local_rank);
  variables["TUTTI_LOCAL_SIZE"] = std::to_string(seat.local_size);
}

void make_folder(const std::string& path) {
  std::error_code status;
  std::filesystem::create_directories(path, status);
  if (status)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--output: cannot make the folder {}: {}", path, status.message()));
}

std::string signal_name(int number) { return fmt::format("SIG{}", ::sigabbrev_np(number)); }

constexpr double kFirstProgressSeconds = 2;
constexpr double kProgressSeconds = 5;
constexpr double kLastWordsSeconds = 1;
constexpr double kForegroundSeconds = 1;

}  // namespace

Job::Job(const Request& request, const Keeper& keeper)
    : request_(request),
      keeper_(keeper),
      secret_(random_secret()),
      secret_file_(hand_over_secret(secret_)),
      hosts_(parse_hosts(request.hosts)),
      own_(own_variables()),
      shared_(shared_variables(request, own_)) {
  if (!request.hosts_given) hosts_.front().slots = request.ranks;
  for (const auto& host : hosts_) here_.push_back(is_this_host(host.name));
  seats_ = place_ranks(hosts_, request.ranks);
  deaths_ =
      std::make_unique<Deaths>(static_cast<int>(seats_.size()), request.keep_going, request.grace);
  if (!request.output.empty()) make_folder(request.output);
  const bool one_host = std::find(here_.begin(), here_.end(), false) == here_.end();
  const auto address = serving_address(request.network_interface, one_host);
  // The server's thread calls this. Like the main thread it must not block on the reader of
  // standard error.
  const auto warn = [](LogLevel, std::string_view line) {
    Outlet(STDERR_FILENO).write(fmt::format("tutti-run: {}\n", line));
  };
  server_ = std::make_unique<TcpStoreServer>(address, 0, secret_, warn);
  store_ = server_->local();
  shared_["TUTTI_STORE"] = store_url(address, server_->port());
}

// Starts one rank. The loop starts one per round, so that signals and the first ranks' output need
// not wait for the last rank.
void Job::start_next() {
  const auto& seat = seats_[ranks_.size()];
  auto variables = shared_;
  seat_variables(variables, seat, seats_.size());
  if (here_[static_cast<size_t>(seat.host)])
    start_local(seat, std::move(variables));
  else
    start_remote(seat, std::move(variables));
}

void Job::start_local(const Seat& seat, Variables variables) {
  Command command;
  command.variables = std::move(variables);
  for (const auto& [name, value] : own_)
    if (!is_setting(name)) command.variables.emplace(name, value);
  command.arguments = request_.program;
  command.inherited = secret_file_.get();
  command.variables["TUTTI_SECRET_FD"] = std::to_string(secret_file_.get());
  command.has_input = seat.rank == 0;
  const bool gave_threads = give_share(command, request_.bind);
  add_rank(seat, own_host_name(), command, false);
  if (gave_threads && !std::exchange(told_of_threads_, true)) tell(threads_text(command));
}

void Job::start_remote(const Seat& seat, Variables variables) {
  const auto& host = hosts_[static_cast<size_t>(seat.host)].name;
  Command command;
  command.variables = own_;
  command.arguments = request_.remote_shell;
  command.arguments.push_back(host);
  command.arguments.push_back(
      shell_quote(std::filesystem::read_symlink("/proc/self/exe").string()));
  command.arguments.push_back("--remote-rank");
  command.has_input = true;
  add_rank(seat, host, command, true);
  ranks_.back()->start({secret_, std::filesystem::current_path().string(), std::move(variables),
                        request_.program, seat.rank == 0, request_.bind});
}

void Job::add_rank(const Seat& seat, std::string host, const Command& command, bool remote) {
  const bool bare =
      !request_.prefix || !request_.output.empty() || (request_.bare_first_rank && seat.rank == 0);
  const bool colour = ::isatty(STDOUT_FILENO) && !own_.contains("NO_COLOR");
  ranks_.push_back(std::make_unique<Rank>(seat.rank, std::move(host), Child(command), remote,
                                          bare ? "" : rank_prefix(seat.rank, colour),
                                          sink(seat, output_, "out"), sink(seat, errors_, "err")));
}

LineOutput::Sink Job::sink(const Seat& seat, Outlet& outlet, const char* ending) {
  if (request_.output.empty()) return [&outlet](std::string_view text) { outlet.write(text); };
  const auto path = fmt::format("{}/{}.{}", request_.output, seat.rank, ending);
  const auto file = std::make_shared<Descriptor>(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!*file) throw system_error(fmt::format("--output: cannot write {}", path), errno);
  return [this, file, path](std::string_view text) {
    if (!*file) return;
    if (const int reason = write_all(file->get(), text)) {
      file->reset();
      tell_loss(path, reason);
    }
  };
}

int Job::run() {
  next_progress_ = Deadline::after(kFirstProgressSeconds);
  while (!is_done()) {
    if (ranks_.size() < seats_.size()) {
      if (deaths_->is_ending())
        for (auto i = ranks_.size(); i < seats_.size(); ++i) deaths_->left_out(seats_[i].rank);
      else
        start_next();
    }
    wait_for_events();
  }
  const int code = deaths_->exit_code();
  return code == 0 && (lost_output_ || errors_.failure() != 0) ? 1 : code;
}

bool Job::is_done() {
  if (!deaths_->all_ended()) return false;
  if (!std::exchange(reported_, true)) report();
  // The user has asked the job to end, so a reader that does not read must not delay it.
  if (deaths_->asked_signal() != 0 && last_words_.is_never())
    last_words_ = Deadline::after(kLastWordsSeconds);
  return (output_.is_empty() && errors_.is_empty()) || last_words_.passed();
}

// Only a terminal's foreground process may read from it. The system stops a launcher in the
// background that tries.
bool Job::reads_input() const {
  if (input_ended_ || ranks_.empty() || deaths_->has_ended(0)) return false;
  if (!ranks_.front()->takes_input()) return false;
  return !::isatty(STDIN_FILENO) || ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

void Job::wait_for_events() {
  std::vector<pollfd> entries{{keeper_.orders(), POLLIN, 0},
                              {keeper_.ends(), POLLIN, 0},
                              {output_.is_empty() ? -1 : output_.descriptor(), POLLOUT, 0},
                              {errors_.is_empty() ? -1 : errors_.descriptor(), POLLOUT, 0},
                              {reads_input() ? STDIN_FILENO : -1, POLLIN, 0}};
  const auto first_rank = entries.size();
  // If the reader of the launcher's output is slow, the launcher stops reading from the ranks.
  // Their writes then block.
  const bool full = output_.is_full() || errors_.is_full();
  std::vector<Rank*> owners;
  for (const auto& rank : ranks_) {
    if (deaths_->has_ended(rank->number())) continue;
    auto& child = rank->child();
    entries.push_back({child.output && !full ? child.output.get() : -1, POLLIN, 0});
    entries.push_back({child.errors && !full ? child.errors.get() : -1, POLLIN, 0});
    entries.push_back({child.descriptor(), POLLIN, 0});
    entries.push_back({rank->has_unwritten() ? child.input.get() : -1, POLLOUT, 0});
    owners.push_back(rank.get());
  }
  if (::poll(entries.data(), entries.size(), poll_milliseconds()) < 0 && errno != EINTR)
    throw system_error("cannot wait for the ranks", errno);
  // Each rank has four entries in the poll. The rank's end is handled after its output.
  for (size_t i = 0; i < owners.size(); ++i) {
    auto& rank = *owners[i];
    const auto* own = &entries[first_rank + 4 * i];
    if (own[0].revents) rank.take_output();
    if (own[1].revents) rank.take_errors();
    if (own[3].revents) rank.write_more();
    if (own[2].revents) take_end(rank);
  }
  if (entries[2].revents) output_.flush();
  if (entries[3].revents) errors_.flush();
  if (entries[4].revents) take_input();
  if (entries[0].revents) take_orders();
  if (entries[1].revents) reap_adopted();
  escalate();
  tell_progress();
  if (!lost_output_ && output_.failure() != 0) tell_loss("standard output", output_.failure());
}

int Job::poll_milliseconds() const {
  if (ranks_.size() < seats_.size() && !deaths_->is_ending()) return 0;
  auto until = std::min(deaths_->next().when(), last_words_.when());
  // The launcher may return to the terminal's foreground without an event, so it checks regularly.
  if (!input_ended_ && ::isatty(STDIN_FILENO))
    until = std::min(until, Deadline::after(kForegroundSeconds).when());
  return Deadline::at(until).poll_milliseconds();
}

void Job::take_input() {
  char bytes[64 << 10];
  const auto got = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  input_ended_ = got <= 0;
  ranks_.front()->give_input({bytes, static_cast<size_t>(std::max<ssize_t>(got, 0))});
}

void Job::take_orders() {
  while (const auto number = keeper_.next_order()) {
    signal_all(*number);
    if (*number == SIGUSR1 || *number == SIGUSR2) continue;
    const bool again = deaths_->asked_signal() != 0;
    deaths_->asked_to_end(*number, Clock::now());
    if (deaths_->all_ended()) continue;
    if (again)
      tell(fmt::format("{} again: killing {}", signal_name(*number), names_of_ranks_left()));
    else if (request_.grace > 0)
      tell(
          fmt::format("{} passed on to {}; those that run after {} s get SIGTERM, after {} s "
                      "SIGKILL; a second signal kills them immediately",
                      signal_name(*number), names_of_ranks_left(), request_.grace,
                      request_.grace + Deaths::kAskedTermSeconds));
    else
      tell(fmt::format("{} passed on to {}; a second signal kills them", signal_name(*number),
                       names_of_ranks_left()));
  }
}

void Job::reap_adopted() {
  keeper_.reap_adopted([&](pid_t pid) {
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
      return !deaths_->has_ended(rank->number()) && rank->child().pid() == pid;
    });
  });
}

void Job::take_end(Rank& rank) {
  const auto end = rank.finish();
  // The first error is read before the other ranks learn of this end and write errors that result
  // from it.
  if (const auto erred = end.failed() ? read_first_error(*store_) : std::nullopt)
    deaths_->erred_first(erred->rank);
  // This also records a rank that ended with code 0, because others may still wait for it.
  append_death(*store_, {.who = {.rank = rank.number()},
                         .pid = rank.pid(),
                         .signal = end.signal,
                         .code = end.code,
                         .host = rank.host()});
  deaths_->ended(rank.number(), end, Clock::now());
}

void Job::signal_all(int number) {
  for (const auto& rank : ranks_)
    if (!deaths_->has_ended(rank->number())) rank->signal(number);
}

std::string Job::names_of_ranks_left() const {
  std::vector<int> left;
  for (const auto& rank : ranks_)
    if (!deaths_->has_ended(rank->number())) left.push_back(rank->number());
  return format_rank_set(left);
}

void Job::escalate() {
  const int number = deaths_->due(Clock::now());
  if (number == 0) return;
  if (std::exchange(last_told_, number) != number)
    tell(fmt::format("{} still there: {}", names_of_ranks_left(), signal_name(number)));
  signal_all(number);
}

void Job::tell(const std::string& text) { errors_.write(fmt::format("tutti-run: {}\n", text)); }

// Starting thousands of ranks takes long, so the user sees the progress.
void Job::tell_progress() {
  if (ranks_.size() == seats_.size() || !next_progress_.passed()) return;
  next_progress_ = Deadline::after(kProgressSeconds);
  tell(fmt::format("{} of {} ranks started", ranks_.size(), seats_.size()));
}

void Job::tell_loss(const std::string& place, int error_number) {
  lost_output_ = true;
  tell(fmt::format("cannot write to {}: {}; what the ranks write there is lost", place,
                   ::strerror(error_number)));
}

void Job::report() {
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
  // The rank may have failed because a rank that it needed had already ended.
  if (const auto before = deaths_->ended_before_failure(); !before.empty())
    text += fmt::format(", after {} had ended with code 0", format_rank_set(before));
  const auto lines = rank.last_lines().lines();
  text += lines.empty() ? ". It wrote nothing.\n" : ". Its last lines:\n";
  for (const auto& line : lines) text += fmt::format("  {}\n", line);
  errors_.write(text);
}

}  // namespace tutti::run
