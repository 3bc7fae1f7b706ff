// Trains a recommender on any number of ranks, with the same batches for every number. It learns
// features of viewers and films whose products match the given ratings, so that it can predict the
// missing ratings. The ratings are synthetic: they follow from known features plus noise.

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

#include "tutti/kernels/counter_random.h"
#include "tutti/nn.h"
#include "tutti/tutti.h"

namespace nn = tutti::nn;

namespace {

struct Settings {
  int steps = 300;
  int64_t batch = 512;  // ratings per step, on all ranks together
  int64_t viewers = 200, films = 100, features = 4;
  double noise = 0.1;
  unsigned seed = 1;
  double learning_rate = 0.02;
};

// The features from which the ratings follow. The model does not see them.
class World {
 public:
  explicit World(const Settings& s)
      : s_(s),
        viewers_(static_cast<size_t>(s.viewers * s.features)),
        films_(static_cast<size_t>(s.films * s.features)) {
    tutti::fill_random_normals(key("viewers", 0), 0, viewers_);
    tutti::fill_random_normals(key("films", 0), 0, films_);
  }

  struct Ratings {
    tutti::Tensor pairs, values;
  };
  // Returns ratings `first` to `first + count` of a step. Test ratings have another `purpose`.
  Ratings ratings(const char* purpose, int step, int64_t first, int64_t count) const {
    const tutti::Tensor pairs(tutti::Shape{count, 2}, tutti::DataType::i64);
    const tutti::Tensor values(tutti::Shape{count, 1}, tutti::DataType::f32);
    tutti::fill_random_normals(key("noise", step), static_cast<uint64_t>(first),
                               values.span<float>());
    for (int64_t i = 0; i < count; ++i) {
      const auto words = tutti::random_block(key(purpose, step), static_cast<uint64_t>(first + i));
      const auto viewer = static_cast<int64_t>(words[0]) % s_.viewers;
      const auto film = static_cast<int64_t>(words[1]) % s_.films;
      pairs.as<int64_t>()[2 * i] = viewer;
      pairs.as<int64_t>()[2 * i + 1] = film;
      double rating = s_.noise * static_cast<double>(values.as<float>()[i]);
      for (int64_t f = 0; f < s_.features; ++f)
        rating += static_cast<double>(viewers_[static_cast<size_t>(viewer * s_.features + f)] *
                                      films_[static_cast<size_t>(film * s_.features + f)]) /
                  std::sqrt(static_cast<double>(s_.features));
      values.as<float>()[i] = static_cast<float>(rating);
    }
    return {pairs, values};
  }

 private:
  tutti::RandomKey key(const char* purpose, int step) const {
    return {.seed = s_.seed,
            .purpose = tutti::random_purpose(purpose),
            .step = static_cast<uint32_t>(step)};
  }

  const Settings s_;
  std::vector<float> viewers_, films_;
};

void train(const Settings& s) {
  const auto comm = tutti::Communicator::create();
  const int64_t rank = comm->rank(), size = comm->size();
  const int64_t first = s.batch * rank / size, count = s.batch * (rank + 1) / size - first;
  const World world(s);

  nn::Sequential model(s.seed);
  model.add("ratings", nn::matrix_factorization(s.viewers, s.films, s.features));
  nn::Adam adam(model.parameters(), {.learning_rate = s.learning_rate});
  auto optimizer = tutti::distributed(*comm, adam, {.op = tutti::ReduceOp::sum});
  nn::StepAgreement agreement(*comm);
  for (int step = 0; step < s.steps; ++step) {
    const auto [pairs, values] = world.ratings("pairs", step, first, count);
    model.zero_grad();
    const nn::MeanSquaredError loss(model.forward(pairs), values);
    model.backward(loss, agreement.divisor());
    agreement.send(loss);
    optimizer.synchronize();
    const auto outcome = agreement.finish(adam.parameters());
    if (outcome.is_skipped)
      optimizer.skip();
    else
      optimizer.step();
    if (rank == 0) std::printf("step %d  loss %.6f  norm %.6g\n", step, outcome.loss, outcome.norm);
  }
  const auto [pairs, values] = world.ratings("test", 0, 0, 4096);
  const nn::MeanSquaredError test(model.forward(pairs), values);
  if (rank == 0)
    std::printf("test error %.4f, of which %.4f is noise\n", std::sqrt(test.value()), s.noise);
}

}  // namespace

int main(int count, char** arguments) {
  Settings s;
  CLI::App app("Trains a recommender on synthetic ratings on all ranks of the job.");
  app.add_option("--steps", s.steps, "of training");
  app.add_option("--batch", s.batch, "ratings per step, of all ranks together");
  app.add_option("--viewers", s.viewers, "who rate")->check(CLI::PositiveNumber);
  app.add_option("--films", s.films, "that are rated")->check(CLI::PositiveNumber);
  app.add_option("--features", s.features, "of each")->check(CLI::PositiveNumber);
  app.add_option("--noise", s.noise, "of a rating");
  app.add_option("--learning-rate", s.learning_rate, "of Adam");
  app.add_option("--seed", s.seed, "of weights and ratings");
  CLI11_PARSE(app, count, arguments);
  try {
    train(s);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "recommender: %s\n", error.what());
    return 1;
  }
  return 0;
}
