// TUTTI_ALGORITHMS: which algorithm and backend run which operations.

#include "tests/fuzz/harness.h"
#include "tutti/collectives/chooser.h"

namespace tutti::fuzz {
namespace {

// The first byte is the requested determinism.
bool parse_scores(std::string_view input) {
  const auto determinism = static_cast<Determinism>(take_number_of(input, 1) % 3);
  const Chooser chooser(input, determinism);
  for (int number = 0; number < kCollectiveKindCount; ++number) {
    const auto kind = static_cast<CollectiveKind>(number);
    for (const int64_t bytes : {int64_t{0}, int64_t{5000}, int64_t{1} << 40}) {
      const auto& algorithm = chooser.choose({kind, bytes, 8, 2, determinism});
      require(algorithm.kind == kind, "the algorithm of another collective was chosen");
      if (const auto* score = chooser.find(kind, bytes))
        require(score->low <= bytes && bytes < score->high, "a score of another size was found");
    }
  }
  return !chooser.scores().empty();
}

std::vector<std::string> seeds_of_scores() {
  std::vector<std::string> seeds = {
      std::string(1, '\0') + "allreduce:0-32K=one_shot,32k-inf=ucx/ring;broadcast:0-inf=ucx/auto",
      std::string(1, '\1') + "reduce_scatter:64K-1G=direct;allgather:0-inf=shm+tcp/bruck",
      std::string(1, '\2') + "allreduce:0-inf=two_shot"};
  for (const auto& algorithm : algorithms())
    seeds.push_back(std::string(1, '\0') + std::string(to_string(algorithm.kind)) +
                    ":0-1M=" + std::string(algorithm.name));
  return seeds;
}

const Registered registered_scores({.name = "scores",
                                    .parse = parse_scores,
                                    .seeds = seeds_of_scores});

}  // namespace
}  // namespace tutti::fuzz
