#include "teratron/pickle/torch_writer.h"

#include "teratron/pickle/zip_writer.h"

namespace teratron {

namespace {

void write_archive(ZipWriter& zip, const std::string& name, PickleWriter& pickle,
                   const WriteTensor& write_tensor) {
  const std::string folder = name + "/";
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

}  // namespace

void write_torch_file(const std::filesystem::path& path, PickleWriter& pickle,
                      const WriteTensor& write_tensor) {
  ZipWriter zip(path);
  write_archive(zip, path.stem().string(), pickle, write_tensor);
}

TorchFileSequence::TorchFileSequence(const std::filesystem::path& path)
    : file_(File::create(path, ExitCode::checkpoint)) {}

TorchFileSequence::Place TorchFileSequence::add(PickleWriter& pickle, const WriteTensor& write_tensor) {
  ZipWriter zip(file_);
  write_archive(zip, "archive", pickle, write_tensor);
  const Place place{.offset = bytes_, .bytes = zip.bytes()};
  bytes_ += place.bytes;
  return place;
}

void TorchFileSequence::finish() {
  file_.sync();
  file_.close();
}

}  // namespace teratron
