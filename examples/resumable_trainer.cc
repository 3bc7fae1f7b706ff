// Fits a line to points on any number of ranks, and can be stopped at any moment. It resumes from
// its newest checkpoint, also on another number of ranks, and ends as if it had never stopped. The
// lines that end in "// tutti" do this.

#include <tutti/adapters/checkpoint/checkpoint_folder.h>  // tutti
#include <tutti/adapters/sampling/sampler.h>              // tutti
#include <tutti/tutti.h>                                  // tutti

#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int64_t kPoints = 1009, kGlobalBatch = 24;

void train(const std::string& folder, int64_t last_step) {
  auto comm = tutti::Communicator::create();           // tutti
  std::vector<float> weights = {0, 0};                 // slope and offset
  tutti::Sampler sampler(kPoints, {.seed = 7});        // tutti
  tutti::CheckpointFolder checkpoints(*comm, folder);  // tutti
  int64_t step = 0;
  if (const auto found = checkpoints.load({{"weights", weights, {{2}}}})) {  // tutti
    sampler.restore(found->words.at("sampler"));                             // tutti
    step = found->step;                                                      // tutti
  }
  const int64_t first = step, batch = kGlobalBatch / comm->size();
  while (step < last_step) {
    if (sampler.left() == 0) sampler.next_epoch();  // tutti
    std::vector<float> sums(3);                     // for the gradient, and the sample count
    for (const int64_t i : sampler.take(batch, comm->rank(), comm->size())) {  // tutti
      const float x = static_cast<float>(i) / kPoints, y = 3 * x - 1;
      const float error = weights[0] * x + weights[1] - y;
      sums[0] += error * x;
      sums[1] += error;
      sums[2] += 1;
    }
    comm->allreduce("gradient", sums, tutti::ReduceOp::sum).wait();  // tutti
    for (size_t i = 0; i < 2; ++i) weights[i] -= 0.8F * sums[i] / sums[2];
    if (++step % 10 == 0)
      checkpoints.save(step, {{"weights", weights, {{2}}}},
                       {{"sampler", sampler.state()}});  // tutti
  }
  if (comm->rank() == 0)
    std::printf("steps %lld to %lld on %d ranks: %.4f x %+.4f\n", static_cast<long long>(first),
                static_cast<long long>(step), comm->size(), static_cast<double>(weights[0]),
                static_cast<double>(weights[1]));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: resumable_trainer FOLDER LAST_STEP\n");
    return 2;
  }
  try {
    train(arguments[1], std::stoll(arguments[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resumable_trainer: %s\n", error.what());
    return 1;
  }
  return 0;
}
