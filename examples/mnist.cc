// Trains a LeNet-style network on MNIST digits on any number of ranks: alone, or under tutti-run,
// mpirun or srun. The global batch is the same for any number of ranks. `--method` chooses how the
// ranks learn from each other (docs/training-methods.md), and `--method list` prints the methods.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tutti/nn.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tutti.h"

namespace nn = tutti::nn;

namespace {

struct Settings {
  int epochs = 6;
  int batch = 64;             // images per step, on all ranks together
  std::string optimizer;      // name of the ranks' own optimizer; empty: the method's default
  double learning_rate = -1;  // below 0: the optimizer's default
  double momentum = -1;       // below 0: the method's default
  unsigned seed = 1;
  std::string method = "synchronous";
  int every = 16;
  std::string wire = "f32";
  double until = 0;  // stop at this % of right test digits; 0: go through all epochs
  std::string data;
  std::string timeline;
  std::string save;
  std::string device = "cpu";
  std::string dtype = "f32";  // dtype of activations
  bool quiet = false;
};

// The options of distributed() for a method, given `every` and the number of steps of the training.
struct Method {
  const char* name;
  std::function<tutti::DistributedOptions(int every, int64_t steps)> options;
  const char* optimizer = "sgd";  // optimizer of the ranks' own steps
  double momentum = 0.9;          // of that SGD
};

const std::vector<Method>& methods() {
  using tutti::Momenta;
  static const std::vector<Method> kMethods = {
      {"synchronous", [](int, int64_t) { return tutti::DistributedOptions{}; }},
      {"parameter-averaging",
       [](int, int64_t) { return tutti::DistributedOptions{.exchange = tutti::local_sgd(1)}; }},
      {"local-sgd",
       [](int every, int64_t) {
         return tutti::DistributedOptions{.exchange = tutti::local_sgd(every)};
       }},
      {"local-sgd-averaged",
       [](int every, int64_t) {
         return tutti::DistributedOptions{.exchange = tutti::local_sgd(every, Momenta::averaged)};
       }},
      {"local-sgd-zeroed",
       [](int every, int64_t) {
         return tutti::DistributedOptions{.exchange = tutti::local_sgd(every, Momenta::zeroed)};
       }},
      {"post-local",
       [](int every, int64_t steps) {
         return tutti::DistributedOptions{.exchange = tutti::post_local_sgd(steps / 2, every)};
       }},
      {"slowmo",
       [](int every, int64_t) {
         return tutti::DistributedOptions{.exchange = tutti::slow_momentum_sgd(every)};
       }},
      {"diloco",
       [](int every, int64_t) {
         return tutti::DistributedOptions{.exchange = tutti::diloco(every)};
       },
       "adamw"},
      {"streaming-diloco",
       [](int every, int64_t) {
         return tutti::DistributedOptions{.exchange =
                                              tutti::streaming_diloco(every, 2, every > 4 ? 2 : 0)};
       },
       "adamw"},
      {"easgd",
       [](int, int64_t) {
         return tutti::DistributedOptions{.exchange = tutti::elastic_averaging()};
       }},
      {"adasum",
       [](int, int64_t) {
         return tutti::DistributedOptions{.exchange = tutti::adasum_of_gradients()};
       }},
      {"adasum-of-changes",
       [](int every, int64_t) {
         return tutti::DistributedOptions{.exchange = tutti::adasum_of_changes(every)};
       },
       "sgd", 0},
      {"growing-batch",
       [](int, int64_t) { return tutti::DistributedOptions{.noise = {.most_passes = 4}}; }},
  };
  return kMethods;
}

const Method& find_method(const std::string& name) {
  for (const auto& method : methods())
    if (method.name == name) return method;
  throw tutti::Error(tutti::ErrorCode::invalid_argument,
                     "there is no --method " + name + "; --method list names them");
}

// Returns the rank's device. From a list such as "cpu,cuda" the ranks take one in turn.
tutti::Device device_of(const Settings& settings, int rank) {
  std::vector<std::string> devices;
  std::istringstream words(settings.device);
  for (std::string word; std::getline(words, word, ',');) devices.push_back(word);
  if (devices.empty()) devices.push_back(settings.device);
  return tutti::device_of(devices[static_cast<size_t>(rank) % devices.size()]);
}

nn::Sequential lenet(const Settings& settings, int rank) {
  nn::Sequential model(settings.seed, 1, device_of(settings, rank));
  if (settings.dtype != "f32")
    model.add("narrow",
              nn::cast_to(settings.dtype == "bf16" ? tutti::DataType::bf16 : tutti::DataType::f16));
  model.add("conv1", nn::conv2d(1, 6, 5, {.stride = 1, .padding = 2}))
      .add("relu1", nn::relu())
      .add("pool1", nn::max_pool2d(2))
      .add("conv2", nn::conv2d(6, 16, 5))
      .add("relu2", nn::relu())
      .add("pool2", nn::max_pool2d(2))
      .add("flatten", nn::flatten())
      .add("fc1", nn::linear(400, 120))
      .add("relu3", nn::relu())
      .add("fc2", nn::linear(120, 84))
      .add("relu4", nn::relu())
      .add("fc3", nn::linear(84, 10));
  return model;
}

// Returns the percentage of test digits that the model recognizes. Each rank tests its part.
double accuracy(tutti::Communicator& comm, nn::Sequential& model, const nn::Dataset& test) {
  constexpr int64_t kBatch = 100;
  nn::DataLoader loader(test, {.batch = kBatch,
                               .rank = comm.rank(),
                               .size = comm.size(),
                               .shuffle = false,
                               .seed = 1,
                               .drop_last = false,
                               .device = model.device(),
                               .stream = model.stream()});
  std::vector<double> counts(2, 0.0);  // right, all
  for (const auto& [images, labels] : loader) {
    counts[0] += static_cast<double>(nn::count_correct(model.forward(images), labels));
    counts[1] += static_cast<double>(labels.count());
  }
  comm.allreduce_blocking("test", counts, tutti::ReduceOp::sum);
  return 100 * counts[0] / counts[1];
}

constexpr int64_t kTestEvery = 25;  // steps between tests, with --until

double seconds_since(tutti::Clock::time_point begin) {
  return std::chrono::duration<double>(tutti::Clock::now() - begin).count();
}

void show_progress(int epoch, int epochs, int64_t step, int64_t steps) {
  if (::isatty(STDOUT_FILENO) == 0) return;
  constexpr int64_t kWidth = 20;
  std::string bar;
  for (int64_t i = 0; i < kWidth; ++i) bar += i < step * kWidth / steps ? "█" : "░";
  std::printf("\repoch %d/%d  %s", epoch, epochs, bar.c_str());
  std::fflush(stdout);
}

// Trains with the optimizer make_inner(parameters, learning rate) for the ranks' own steps.
template <class MakeInner>
void train(const Settings& settings, const Method& method, const MakeInner& make_inner) {
  auto options = tutti::Options::from_environment();
  if (!settings.timeline.empty()) options.timeline = settings.timeline;
  if (settings.device.find(',') != settings.device.npos)
    options.mixed_devices = true;
  else  // before the ranks meet, so that ranks that share a GPU detect it
    tutti::device_runtime(device_of(settings, 0).kind);
  const std::string timeline = options.timeline;
  const auto comm = tutti::Communicator::create(std::move(options));
  const bool talks = comm->rank() == 0 && !settings.quiet;

  const auto file = [&](const char* name) { return settings.data + "/" + name; };
  const auto training =
      nn::read_mnist(file("train-images-idx3-ubyte.gz"), file("train-labels-idx1-ubyte.gz"));
  const auto test =
      nn::read_mnist(file("t10k-images-idx3-ubyte.gz"), file("t10k-labels-idx1-ubyte.gz"));
  if (settings.batch % comm->size() != 0)
    throw tutti::Error(tutti::ErrorCode::invalid_argument,
                       "--batch " + std::to_string(settings.batch) + " cannot be shared by " +
                           std::to_string(comm->size()) + " ranks; give a multiple");
  const int64_t share = settings.batch / comm->size();

  auto model = lenet(settings, comm->rank());
  auto inner = make_inner(model.parameters(), settings.learning_rate);
  nn::DataLoader loader(training, {.batch = share,
                                   .rank = comm->rank(),
                                   .size = comm->size(),
                                   .shuffle = true,
                                   .seed = settings.seed,
                                   .drop_last = true,
                                   .device = model.device(),
                                   .stream = model.stream()});
  const int64_t steps = loader.steps_per_epoch();
  const nn::CosineSchedule rate{
      .base = settings.learning_rate, .total = settings.epochs * steps, .warmup = steps / 4};
  auto exchange = method.options(settings.every, settings.epochs * steps);
  if (exchange.noise.most_passes > 0) exchange.noise.batch = share;
  if (settings.wire != "f32")
    exchange.wire = settings.wire == "bf16" ? tutti::DataType::bf16 : tutti::DataType::f16;
  // In f16 small gradients underflow unless losses are scaled. All ranks agree on the scale
  // (StepAgreement).
  const bool is_scaled = settings.dtype == "f16";
  if (is_scaled && settings.method != "synchronous")
    throw tutti::Error(tutti::ErrorCode::invalid_argument,
                       "--dtype f16 scales its losses, which --method " + settings.method +
                           " does not know; use bf16");
  if (is_scaled) exchange.op = tutti::ReduceOp::sum;
  nn::StepAgreement agreement(*comm, {.loss_scale = {.first = is_scaled ? 1024.0 : 1.0}});
  auto optimizer = tutti::distributed(*comm, inner, exchange);
  if (talks)
    std::printf("LeNet on MNIST, %lld digits, %s on %s, %d rank%s (%s), batch %d x %lld\n",
                static_cast<long long>(training.count()), settings.dtype.c_str(),
                tutti::to_string(model.device()).c_str(), comm->size(),
                comm->size() == 1 ? "" : "s", comm->backend().c_str(), comm->size(),
                static_cast<long long>(share));

  const auto begin = tutti::Clock::now();
  double right = 0, seconds_of_tests = 0;               // tests within an epoch
  uint64_t bytes_sent = comm->statistics().data_bytes;  // by this rank, until training ends
  int64_t step = 0;
  int passes = 0;  // passes since the last step of the optimizer
  model.zero_grad();
  bool is_good = false;  // --until is reached
  for (int epoch = 1; epoch <= settings.epochs && !is_good; ++epoch) {
    const auto epoch_begin = tutti::Clock::now();
    const auto before = comm->statistics();
    std::vector<double> loss(1, 0.0);
    std::vector<nn::CrossEntropy> losses;  // read at the end, so that no step waits for them
    int64_t done = 0;
    for (const auto& [images, labels] : loader) {
      // Larger batches use larger steps, by the square-root rule.
      inner.set_learning_rate(rate(step++) * std::sqrt(optimizer.backward_passes_per_step()));
      const auto& cross_entropy = losses.emplace_back(model.forward(images), labels);
      if (is_scaled) {
        model.backward(cross_entropy, agreement.divisor());
        agreement.send(cross_entropy);
        optimizer.synchronize();
        if (agreement.finish(inner.parameters()).is_skipped)
          optimizer.skip();
        else
          optimizer.step();
        model.zero_grad();
      } else {
        model.backward(cross_entropy);
        if (++passes == optimizer.backward_passes_per_step()) {
          optimizer.step();
          model.zero_grad();
          passes = 0;
        }
      }
      if (settings.until > 0 && step % kTestEvery == 0) {
        comm->barrier_blocking();
        const auto test_begin = tutti::Clock::now();
        is_good = accuracy(*comm, model, test) >= settings.until;
        if (is_good && comm->rank() == 0)
          std::printf("%.1f %% reached after %lld steps and %.2f s\n", settings.until,
                      static_cast<long long>(step),
                      std::chrono::duration<double>(test_begin - begin).count() - seconds_of_tests);
        seconds_of_tests += seconds_since(test_begin);
        if (is_good) break;
      }
      if (talks) show_progress(epoch, settings.epochs, ++done, steps);
    }
    for (const auto& one : losses) loss[0] += one.value() / static_cast<double>(steps);
    const double seconds = seconds_since(epoch_begin);
    const auto after = comm->statistics();
    const bool is_last = epoch == settings.epochs || is_good;
    if (is_last) {
      optimizer.placed_state();  // waits for fragments that are still being exchanged
      bytes_sent = comm->statistics().data_bytes - bytes_sent;
    }
    comm->allreduce_blocking("loss", loss);
    if (is_last) optimizer.consolidate();
    right = accuracy(*comm, model, test);
    if (!talks) continue;
    const double exposed = after.exposed_seconds - before.exposed_seconds;
    const double skew = after.skew_seconds - before.skew_seconds;
    std::printf(
        "%sepoch %d/%d  loss %.3f  test %.1f %%  %.0f images/s  exposed %.1f %%  skew %.1f %%\n",
        ::isatty(STDOUT_FILENO) == 0 ? "" : "\r\033[K", epoch, settings.epochs, loss[0], right,
        static_cast<double>(steps * settings.batch) / seconds, 100 * exposed / seconds,
        100 * skew / seconds);
    std::fflush(stdout);
  }
  const auto statistics = comm->statistics();
  if (!settings.save.empty()) {
    tutti::CheckpointFolder checkpoints(*comm, settings.save);
    nn::TrainingState(*comm, model, optimizer, agreement, loader).save(checkpoints, step);
  }
  if (comm->rank() == 0) {
    std::printf("test accuracy %.2f %%  after %.1f s of training\n", right, seconds_since(begin));
    std::printf(
        "%zu gradients in %.1f buckets per step, %.0f %% of the buckets without negotiation; "
        "%llu negotiation messages in all\n",
        inner.parameters().size(),
        static_cast<double>(statistics.buckets) / static_cast<double>(step),
        100.0 * static_cast<double>(statistics.replayed_buckets) /
            static_cast<double>(statistics.buckets),
        static_cast<unsigned long long>(statistics.negotiation_messages));
    std::printf("%s: %llu bytes sent per step\n", settings.method.c_str(),
                static_cast<unsigned long long>(bytes_sent / static_cast<uint64_t>(step)));
    if (optimizer.noise_scale() > 0)
      std::printf("noise scale %.0f digits, %d passes a step\n", optimizer.noise_scale(),
                  optimizer.backward_passes_per_step());
    if (!timeline.empty())
      std::printf("timeline: %s (open in ui.perfetto.dev)\n", timeline.c_str());
    std::fflush(stdout);
  }
}

void train(Settings settings) {
  const auto& method = find_method(settings.method);
  if (settings.optimizer.empty()) settings.optimizer = method.optimizer;
  const bool is_adamw = settings.optimizer == "adamw";
  if (settings.learning_rate < 0) settings.learning_rate = is_adamw ? 0.002 : 0.05;
  if (is_adamw && settings.momentum >= 0)
    throw tutti::Error(tutti::ErrorCode::invalid_argument,
                       "--momentum is of SGD, but --method " + settings.method +
                           " steps by AdamW; add --optimizer sgd");
  if (settings.momentum < 0) settings.momentum = method.momentum;
  using Parameters = std::vector<nn::Parameter>;
  if (is_adamw)
    train(settings, method, [](Parameters parameters, double rate) {
      return nn::AdamW(std::move(parameters), {.learning_rate = rate, .weight_decay = 0.01});
    });
  else
    train(settings, method, [&](Parameters parameters, double rate) {
      return nn::Sgd(std::move(parameters), {.learning_rate = rate, .momentum = settings.momentum});
    });
}

}  // namespace

int main(int count, char** arguments) {
  Settings settings;
  settings.data = (std::filesystem::path(arguments[0]).parent_path() / "data" / "mnist").string();
  CLI::App app("Trains LeNet on MNIST digits on all ranks of the job.");
  app.add_option("--epochs", settings.epochs, "passes over the digits");
  app.add_option("--batch", settings.batch, "digits per step, of all ranks together");
  app.add_option("--optimizer", settings.optimizer,
                 "of the ranks' own steps; otherwise what suits the method")
      ->check(CLI::IsMember({"sgd", "adamw"}));
  app.add_option("--learning-rate", settings.learning_rate,
                 "highest of the cosine schedule; otherwise what suits the optimizer");
  app.add_option("--momentum", settings.momentum, "of SGD; otherwise what suits the method");
  app.add_option("--seed", settings.seed, "of the weights and of the order of digits");
  app.add_option("--data", settings.data, "folder of the four IDX files");
  app.add_option("--timeline", settings.timeline, "file for a Chrome trace of all ranks");
  app.add_option("--save", settings.save, "folder in which the trained model is saved");
  app.add_option("--method", settings.method,
                 "how the ranks learn from each other; list: its names");
  app.add_option("--every", settings.every, "steps from one exchange to the next, where it counts");
  app.add_option("--wire", settings.wire, "type in which gradients and changes travel")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_option("--until", settings.until,
                 "% of the test digits at which it stops; tested every 25 steps, off the clock");
  app.add_option(
      "--device", settings.device,
      "where layers are computed: cpu, cuda, cuda:1; cpu,cuda: on each rank another one");
  app.add_option("--dtype", settings.dtype, "of activations; parameters are f32")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_flag("--quiet", settings.quiet, "only the last lines");
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (settings.method == "list") {
    for (const auto& method : methods()) std::printf("%s\n", method.name);
    return 0;
  }
  try {
    train(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what());
    return 1;
  }
  return 0;
}
