#include "tools/run/deaths.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <chrono>

namespace tutti::run {

namespace {

Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

}  // namespace

std::string End::text() const {
  if (signal != 0) return fmt::format("was killed by signal {} ({})", signal, ::strsignal(signal));
  return fmt::format("ended with code {}", code);
}

Deaths::Deaths(int ranks, bool keep_going, double grace)
    : keep_going_(keep_going), grace_(grace), ends_(static_cast<size_t>(ranks)), left_(ranks) {}

void Deaths::ended(int rank, End end, Clock::time_point now) {
  auto& entry = ends_[static_cast<size_t>(rank)];
  if (entry) return;
  entry = last_ = end;
  --left_;
  if (!end.failed()) {
    if (!first_) ended_well_.push_back(rank);
    return;
  }
  if (!ending_) failed_.push_back(rank);
  if (first_) return;
  first_ = rank;
  if (!keep_going_ && !ending_) term_at_ = now + seconds(kReportSeconds);
}

void Deaths::left_out(int rank) {
  auto& entry = ends_[static_cast<size_t>(rank)];
  if (entry) return;
  entry = End{};
  --left_;
}

void Deaths::erred_first(int rank) {
  if (!first_) erred_ = rank;
}

std::optional<int> Deaths::first_failure() const {
  const bool erred = erred_ && std::find(failed_.begin(), failed_.end(), *erred_) != failed_.end();
  return erred ? erred_ : first_;
}

std::vector<int> Deaths::ended_before_failure() const {
  auto ranks = ended_well_;
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void Deaths::asked_to_end(int signal, Clock::time_point now) {
  if (asked_ != 0) {
    term_at_.reset();
    kill_at_ = now;
  } else if (grace_ > 0 && !kill_at_) {
    term_at_ = now + seconds(grace_);
  }
  asked_ = signal;
  ending_ = true;
}

int Deaths::due(Clock::time_point now) {
  if (all_ended()) return 0;
  if (term_at_ && now >= *term_at_) {
    term_at_.reset();
    kill_at_ = now + seconds(asked_ != 0 ? kAskedTermSeconds : kTermSeconds);
    ending_ = true;
    return SIGTERM;
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_at_ = now + seconds(kKillSeconds);
    return SIGKILL;
  }
  return 0;
}

Deadline Deaths::next() const {
  if (all_ended()) return Deadline::never();
  if (term_at_) return Deadline::at(*term_at_);
  return kill_at_ ? Deadline::at(*kill_at_) : Deadline::never();
}

int Deaths::exit_code() const {
  if (asked_ != 0 && first_) return 128 + asked_;
  if (!first_) return 0;
  return keep_going_ ? last_.exit_code() : end_of(*first_failure())->exit_code();
}

}  // namespace tutti::run
