// One rank of the leaving table. It takes steps with the others until the victim ends in the given
// way. The other ranks then print the error and its delay.
//
//   leaving_rank VICTIM ENDING WAY STAMP
//
// ENDING: close, return, throw, fail, exit, kill, stop, late; WAY: negotiated, replayed, blocking.
// STAMP is a file into which the victim writes its pid and the time just before it ends. With
// "throw", the other ranks exit with code 4 immediately, and the victim half a second later with
// code 3. With "fail", the victim closes and exits with code 3. The resulting exception destroys
// the two Communicators of each other rank before that, and these ranks exit with code 4 a second
// later.

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tutti/core/tutti.h"

#ifdef __SANITIZE_ADDRESS__
// A rank that ends in the middle of its work frees nothing, and UCX's threads keep running, so leak
// detection is off.
extern "C" [[gnu::used]] int __lsan_is_turned_off() { return 1; }
#endif

namespace {

using namespace tutti;

constexpr int kSteps = 12;
constexpr double kLate = 2.5;  // seconds: several times the peer timeout of the table

double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

struct OnPurpose : std::exception {};
struct BecauseOfIt : std::exception {};

class Rank {
 public:
  Rank(std::string ending, std::string way, std::string stamp)
      : ending_(std::move(ending)), way_(std::move(way)), stamp_(std::move(stamp)) {
    auto options = Options::from_environment();
    options.probe_folder.clear();  // tests must not write to the user's folder
    options.replay = way_ == "replayed";
    comm_ = Communicator::create(std::move(options));
    // It has one rank, so it sees no other rank end.
    if (ending_ == "fail") others_ = comm_->split(comm_->rank());
  }

  int run(int victim) {
    for (int step = 0; step < kSteps; ++step) one_step();
    if (comm_->rank() == victim) return end();
    try {
      one_step();
      say(fmt::format("rank {} goes on after {:.0f} ms", comm_->rank(), since_stamp()));
    } catch (const Error& error) {
      say(fmt::format("rank {} heard of rank {} after {:.0f} ms ({}, tensor \"{}\"): {}",
                      comm_->rank(), error.rank(), since_stamp(), to_string(error.code()),
                      error.tensor(), error.what()));
    }
    int pid = 0;
    std::ifstream(stamp_) >> pid;
    if (ending_ == "stop") {
      // Waits until all ranks have got the error: a share that the victim sends before would still
      // count.
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      ::kill(pid, SIGCONT);
    }
    if (ending_ == "fail") throw BecauseOfIt();
    return ending_ == "throw" ? 4 : 0;
  }

 private:
  void one_step() {
    values_.assign(values_.size(), 1.0f);
    if (way_ == "blocking")
      comm_->allreduce_blocking("x", values_, ReduceOp::sum);
    else
      comm_->allreduce("x", values_, ReduceOp::sum).wait();
    if (values_.back() != static_cast<float>(comm_->size())) say("unexpected: a wrong sum");
  }

  double since_stamp() const {
    int pid = 0;
    double when = 0;
    std::ifstream(stamp_) >> pid >> when;
    return (seconds_now() - when) * 1000;
  }

  int end() {
    // By then the other ranks wait for this one.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::ofstream(stamp_) << ::getpid() << ' ' << fmt::format("{:.6f}", seconds_now()) << std::endl;
    if (ending_ == "close") {
      comm_.reset();
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    } else if (ending_ == "fail") {
      comm_.reset();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return 3;
    } else if (ending_ == "throw") {
      throw OnPurpose();
    } else if (ending_ == "exit") {
      std::exit(0);  // runs no destructors of main()
    } else if (ending_ == "kill") {
      ::kill(::getpid(), SIGKILL);
    } else if (ending_ == "stop") {
      ::kill(::getpid(), SIGSTOP);
      try {
        // In shared memory the first step may succeed with data that the others published before.
        one_step();
        one_step();
        say("unexpected: a rank that was given up goes on");
      } catch (const Error&) {
      }
    } else if (ending_ == "late") {
      std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
      one_step();
    }
    return 0;
  }

  const std::string ending_, way_, stamp_;
  std::vector<float> values_ = std::vector<float>(5000);
  std::unique_ptr<Communicator> comm_, others_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fputs("usage: leaving_rank VICTIM ENDING WAY STAMP\n", stderr);
    return 2;
  }
  try {
    Rank rank(arguments[2], arguments[3], arguments[4]);
    return rank.run(std::atoi(arguments[1]));
  } catch (const BecauseOfIt&) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return 4;
  } catch (const OnPurpose&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return 3;
  } catch (const std::exception& error) {
    say(fmt::format("unexpected: {}", error.what()));
    return 1;
  }
}
