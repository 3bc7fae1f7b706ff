#include "benchmarks/limits/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <new>

#include "benchmarks/common/data.h"
#include "benchmarks/common/measure.h"
#include "benchmarks/common/row.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/limits/streams.h"

namespace tutti::benchmarks {

namespace {

constexpr int64_t kFloatsPerLine = 16;

struct alignas(128) Flag {
  std::atomic<uint64_t> value{0};
};

void wait_for(const Flag& flag, uint64_t value) {
  while (flag.value.load(std::memory_order_acquire) < value) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

Row row_of(const Flags& flags, const ForkTeam& team) {
  Row row{.program = "limit", .case_name = flags.case_name()};
  row.ranks = team.size();
  row.transport = "memory";
  return row;
}

}  // namespace

SharedMemory::SharedMemory(size_t bytes) : bytes_(bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(memory);
}
SharedMemory::~SharedMemory() { ::munmap(data_, bytes_); }

void run_mapped_add(const Flags& flags, ForkTeam& team, SharedMemory& shared) {
  // The flags mean "my input is there" and "my half is done". The two buffers follow them.
  auto* ready = reinterpret_cast<Flag*>(shared.data());
  auto* done = ready + 2;
  auto* memory = reinterpret_cast<float*>(shared.data() + 4096);
  const auto sizes = parse_sizes(flags.text("bytes"), flags.whole("factor"));
  const int64_t most = *std::max_element(sizes.begin(), sizes.end()) / 4 + kFloatsPerLine;
  const int me = team.rank(), other = 1 - me;
  uint64_t calls = 0;
  for (const auto bytes : sizes) {
    const int64_t count = bytes / 4;
    float* const buffers[2] = {memory, memory + (most + 1023) / 1024 * 1024};
    // The work is split at a cache line. Rank 0 takes the first half of the lines.
    const int64_t lines = (count + kFloatsPerLine - 1) / kFloatsPerLine;
    const int64_t split = lines / 2 * kFloatsPerLine;
    const int64_t begin = me == 0 ? 0 : split;
    const int64_t own_count = me == 0 ? split : lines * kFloatsPerLine - split;
    for (const bool past_caches : {false, true}) {
      const auto loop = past_caches ? add_both_nt : add_both;
      const auto own = Pattern::of_rank(me), reduced = Pattern::reduced(2);
      const auto fill = [&] { own.fill(buffers[me], count); };
      const auto call = [&] {
        ++calls;
        ready[me].value.store(calls, std::memory_order_release);
        wait_for(ready[other], calls);
        loop(buffers[0] + begin, buffers[1] + begin, own_count);
        done[me].value.store(calls, std::memory_order_release);
        wait_for(done[other], calls);
      };
      auto row = row_of(flags, team);
      row.way = past_caches ? "mapped_add_nt" : "mapped_add";
      row.bytes = bytes;
      row.timing = measure(team, method_of(flags), calls_before_overflow(2), fill, call);
      fill();
      call();
      row.wrong = team.sum(reduced.count_wrong(buffers[me], count));
      if (team.rank() == 0) print(row);
    }
  }
}

void run_probe(const Flags& flags, ForkTeam& team, SharedMemory& shared) {
  auto* flag = reinterpret_cast<Flag*>(shared.data());
  const int me = team.rank();
  constexpr uint64_t kBursts = 9, kRounds = 2000;
  team.barrier();
  std::vector<double> one_ways_ns;
  for (uint64_t round = 0; round < kBursts * kRounds;) {
    const double begin = now_us();
    for (const uint64_t end = round + kRounds; round < end;) {
      ++round;
      if (me == 0) flag[0].value.store(round, std::memory_order_release);
      wait_for(flag[1 - me], round);
      if (me == 1) flag[1].value.store(round, std::memory_order_release);
    }
    one_ways_ns.push_back((now_us() - begin) * 1000 / (2 * kRounds));
  }
  const double one_way_ns = median(one_ways_ns);

  // Sums in the first-level cache, by rank 0 alone and then by both. Two threads of one core share
  // its units, but two cores do not.
  constexpr int64_t kCount = 2048;
  const auto data = make_buffer(kCount), same = make_buffer(kCount);
  constexpr int kSlices = 9;
  constexpr double kSlice_us = 700;
  const auto work = [&] {  // copies per us; a median, so short disturbances do not count
    std::vector<double> rates;
    for (int slice = 0; slice < kSlices; ++slice) {
      int64_t rounds = 0;
      const double start = now_us();
      double spent = 0;
      do {
        for (int i = 0; i < 20; ++i, ++rounds) copy(same.get(), data.get(), kCount);
        spent = now_us() - start;
      } while (spent < kSlice_us);
      rates.push_back(static_cast<double>(rounds) / spent);
    }
    return median(rates);
  };
  work();
  team.barrier();
  const double alone = me == 0 ? work() : 0;
  team.barrier();
  const double together = work();
  const double both = -team.max(-together);  // the slower of the two
  auto row = row_of(flags, team);
  row.way = "probe";
  row.timing = {one_way_ns / 1000, one_way_ns / 1000, one_way_ns / 1000, kBursts, kRounds};
  row.numbers = {{"oneway_ns", one_way_ns}, {"core_scaling", 2 * both / alone}};
  if (me == 0) print(row);
}

}  // namespace tutti::benchmarks
