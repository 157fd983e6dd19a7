#include "teratron/pickle/torch_writer.h"

#include "teratron/pickle/zip_writer.h"

namespace teratron {

void write_torch_file(const std::filesystem::path& path, PickleWriter& pickle,
                      const std::function<void(size_t tensor, const AppendBytes& append)>& write_tensor) {
  ZipWriter zip(path);
  const std::string folder = path.stem().string() + "/";
  zip.add(folder + "data.pkl", pickle.finish());
  zip.add(folder + "byteorder", "little");
  for (size_t i = 0; i < pickle.storages().size(); ++i) {
    zip.begin(folder + "data/" + std::to_string(i), pickle.storages()[i]);
    write_tensor(i, [&zip](const void* data, int64_t bytes) { zip.append(data, bytes); });
    zip.end();
  }
  zip.add(folder + "version", "3\n");
  zip.finish();
}

}  // namespace teratron
