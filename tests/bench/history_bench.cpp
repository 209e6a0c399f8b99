// history_bench DIR [--layers 126] [--steps 10000]: a run directory whose history has that many
// layers, each validated at every step, as a coordinator writes it. Prints one JSON object: bytes
// on disk, and the seconds that writing and reading it took.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "storage/files/file.hpp"
#include "storage/history/columns.hpp"
#include "storage/history/history_file.hpp"

int main(int argc, char** argv) {
  using namespace hedgerow::storage;
  using Clock = std::chrono::steady_clock;
  std::string directory;
  int layers = 126, steps = 10'000;
  CLI::App app;
  app.add_option("directory", directory)->required();
  app.add_option("--layers", layers);
  app.add_option("--steps", steps);
  CLI11_PARSE(app, argc, argv);
  const RunLayout layout(directory);
  std::filesystem::create_directories(layout.root());
  write_atomically(layout.recipe(), "seed = 0\n");
  std::vector<std::string> columns;
  for (const HistoryColumn& column : history_columns())
    if (column.series == "layer") columns.emplace_back(column.name);
  std::vector<float> values(columns.size(), 0.1F);
  const auto seconds = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto begin = Clock::now();
  {
    HistoryWriter writer(layout, 1);
    for (int step = 0; step <= steps; ++step) {
      for (int layer = 0; layer < layers; ++layer) {
        const auto error =
            static_cast<float>(std::exp(-3.0 * step / steps) * (1.0 + layer % 7) / 8);
        values[0] = values[1] = error;
        writer.offer("layer/" + std::to_string(layer), columns, {step, 1.8e9 + step, values});
      }
      writer.flush();
    }
    for (int layer = 0; layer < layers; ++layer) writer.take_last("layer/" + std::to_string(layer));
    writer.flush();
  }
  const double written = seconds(begin);
  const auto read_from = Clock::now();
  HistoryReader reader(layout);
  reader.read_all();
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(layout.history_directory()))
    bytes += entry.file_size();
  std::cout << nlohmann::json{{"bytes", bytes},
                              {"write_s", written},
                              {"read_s", seconds(read_from)},
                              {"series", reader.history().series.size()}}
                   .dump()
            << "\n";
}
