#include "tools/doctor/probe.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tools/run/output.h"
#include "tutti/backends/choice/choice.h"
#include "tutti/backends/plugins.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/collectives/chooser.h"
#include "tutti/core/communicator.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/kernels/reduce.h"

namespace tutti::doctor {

using nlohmann::json;

namespace {

constexpr int kRanks = 2;
constexpr unsigned kPatienceSeconds = 30;
constexpr int64_t kLargestBytes = 256 << 20;

// A folder for the ranks' store. The destructor removes it.
class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = (std::filesystem::temp_directory_path() / "tutti-doctor-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr)
      throw system_error("cannot make a folder for the ranks to meet in", errno);
  }
  ~ScratchFolder() {
    std::error_code status;
    std::filesystem::remove_all(path_, status);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Options rank_options(const Options& outer, const std::string& backend, int rank,
                     std::shared_ptr<Store> store) {
  auto options = Options::thread_rank(rank, kRanks, std::move(store));
  options.backend = backend;
  options.algorithms = outer.algorithms;
  options.determinism = outer.determinism;
  options.backend_path = outer.backend_path;
  options.backend_library = outer.backend_library;
  options.network_interface = outer.network_interface;
  options.secret = "two ranks of tutti-doctor";
  options.connect_timeout = 10;
  options.log_level = LogLevel::error;
  return options;
}

Context rank_context(const Options& options) {
  Context context;
  context.name = options.backend;
  context.algorithms = options.algorithms;
  context.determinism = options.determinism;
  context.rank = options.rank;
  context.size = kRanks;
  context.store = make_prefix_store(options.store_object, "doctor/");
  for (int rank = 0; rank < kRanks; ++rank) {
    Place place;
    place.host = place.host_name = "here";
    place.world_rank = rank;
    context.places.push_back(place);
  }
  context.secret = options.secret;
  context.network_interface = options.network_interface;
  context.settings = backend_settings(options);
  context.deadline = Deadline::after(options.connect_timeout);
  return context;
}

// Returns ranges of sizes with the backend and the algorithm for each.
json choices(Backend& backend, CollectiveKind kind) {
  json ranges = json::array();
  json before;
  for (int64_t bytes = 4; bytes <= kLargestBytes; bytes *= 2) {
    const int64_t share = kind == CollectiveKind::allgather ? bytes / 4 / kRanks : bytes / 4;
    const std::vector<int64_t> counts(kind == CollectiveKind::allgather ? kRanks : 1,
                                      std::max<int64_t>(share, 1));
    Collective collective;
    collective.kind = kind;
    collective.send_counts = counts;
    json chosen = {{"backend", backend.name_for(collective)},
                   {"algorithm", std::string(backend.algorithm(collective))}};
    if (chosen == before) continue;
    before = chosen;
    if (!ranges.empty()) ranges.back()["to"] = bytes;
    chosen["from"] = ranges.empty() ? 0 : bytes;
    chosen["to"] = nullptr;
    ranges.push_back(std::move(chosen));
  }
  return ranges;
}

json describe(Backend& backend, int rank) {
  const auto capabilities = backend.capabilities();
  json serves = json::object();
  for (int d = 0; d < kDataTypeCount; ++d) {
    auto& ops = serves[std::string(to_string(static_cast<DataType>(d)))] = json::array();
    for (int o = 0; o < kReduceOpCount; ++o)
      if (capabilities.serves(CollectiveKind::allreduce, static_cast<DataType>(d),
                              static_cast<ReduceOp>(o)))
        ops.push_back(std::string(to_string(static_cast<ReduceOp>(o))));
  }
  json devices = json::array();
  devices.push_back("cpu");
  for (const auto& service : capabilities.devices)
    if (const auto name = to_string(service.device); devices.back() != name)
      devices.push_back(name);
  json table = json::object();
  for (const auto kind :
       {CollectiveKind::allreduce, CollectiveKind::broadcast, CollectiveKind::allgather})
    table[std::string(to_string(kind))] = choices(backend, kind);
  const auto route = capabilities.route.empty() ? std::string(backend.transport()->route(1 - rank))
                                                : capabilities.route;
  return {{"route", route}, {"devices", devices}, {"serves", serves}, {"choices", table}};
}

double median_us(Communicator& comm, std::vector<float>& values, int calls) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const auto begin = Clock::now();
    comm.allreduce_blocking("probe", values, ReduceOp::sum);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<size_t>(calls / 2)];
}

// Connects and then waits until both ranks have tried. If a rank left while the other still
// connected, the other one would report it as unreachable.
std::unique_ptr<Backend> connect(const Context& context) {
  const auto key = [](int rank) { return fmt::format("tried/{}", rank); };
  const auto tell = [&] { context.store->set(key(context.rank), "yes"); };
  std::unique_ptr<Backend> backend;
  try {
    backend = connect_choice(context);
  } catch (const Error&) {
    tell();
    throw;
  }
  tell();
  for (int rank = 0; rank < kRanks; ++rank) context.store->get(key(rank), context.deadline);
  return backend;
}

// Returns what one rank finds. The caller reports the result of rank 0.
json run_rank(const Options& options, bool measures) {
  json told;
  {
    const auto plugins =
        load_backends(options.backend, Chooser(options.algorithms, options.determinism),
                      backend_folders(options));
    auto context = rank_context(options);
    context.plugins = plugins;
    const auto backend = connect(context);
    told = describe(*backend, options.rank);
    backend->transport()->goodbye(2);
  }
  if (!measures) return told;
  const auto comm = Communicator::create(options);
  std::vector<float> small(1), large(4 << 20);
  median_us(*comm, small, 50);
  told["latency_us"] = median_us(*comm, small, 201);
  median_us(*comm, large, 1);
  const double bytes = static_cast<double>(large.size() * sizeof(float));
  told["bandwidth_gb_s"] = bytes / median_us(*comm, large, 7) / 1e3;
  return told;
}

json try_rank(const Options& options, bool measures) {
  try {
    return run_rank(options, measures);
  } catch (const std::exception& error) {
    return {{"failure", error.what()}};
  }
}

json run_threads(const std::string& backend, const Options& options, bool measures) {
  const auto store = make_memory_store();
  std::array<json, kRanks> told;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      told[static_cast<size_t>(rank)] =
          try_rank(rank_options(options, backend, rank, store), measures);
    });
  for (auto& thread : threads) thread.join();
  return told[0];
}

// Runs `body` in a child process, which writes its result to the pipe. The alarm ends a child that
// takes too long.
template <class Body>
pid_t start_child(const Descriptor& out, Body&& body) {
  const pid_t child = ::fork();
  if (child < 0) throw system_error("cannot start a rank", errno);
  if (child > 0) return child;
  ::alarm(kPatienceSeconds);
  run::write_all(out.get(), body().dump());
  ::_exit(0);
}

// Returns the failure of a rank that ended with this status and wrote no result.
std::string silence_text(size_t rank, int status) {
  const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (number == SIGALRM)
    return fmt::format("rank {} of two was not done after {} s", rank, kPatienceSeconds);
  return fmt::format(
      "rank {} of two {} without an error message", rank,
      number == 0 ? fmt::format("ended with code {}", WEXITSTATUS(status))
                  : fmt::format("was killed by signal {} ({})", number, ::strsignal(number)));
}

}  // namespace

json probe(const std::string& backend, const Options& options, bool measures) {
  const ScratchFolder folder;
  std::array<Descriptor, kRanks> answers;
  std::vector<pid_t> children;
  const bool is_threads = backend == "memory";
  for (int rank = 0; rank < (is_threads ? 1 : kRanks); ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) throw system_error("cannot make a pipe", errno);
    answers[static_cast<size_t>(rank)].reset(ends[0]);
    const Descriptor out(ends[1]);
    children.push_back(start_child(out, [&] {
      if (is_threads) return run_threads(backend, options, measures);
      const auto store = make_file_store(folder.path());
      return try_rank(rank_options(options, backend, rank, store), measures);
    }));
  }
  json told;
  for (size_t i = 0; i < children.size(); ++i) {
    std::string text;
    char buffer[4096];
    for (ssize_t count; (count = ::read(answers[i].get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(count));
    int status = 0;
    ::waitpid(children[i], &status, 0);
    auto own = json::parse(text, nullptr, false);
    if (own.is_discarded()) own = {{"failure", silence_text(i, status)}};
    if (i == 0 || (own.contains("failure") && !told.contains("failure"))) told = std::move(own);
  }
  return told;
}

}  // namespace tutti::doctor
