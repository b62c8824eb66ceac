import numpy as np
import pytest

from helpers.harness import without_backend
from zoo.datasets import imagenet
from zoo.datasets.batches import Part
from zoo.datasets.imagenet import MEAN, STD, RecordBatches

pytestmark = without_backend
tf = pytest.importorskip("tensorflow", reason="tf.data needs TensorFlow, which cannot be imported")
IMAGES = 12


def write_records(path, images, labels):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(images, labels, strict=True):
            jpeg = tf.io.encode_jpeg(image, quality=95).numpy()
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write three files of four images each, labelled by their number."""
    folder = tmp_path_factory.mktemp("records")
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, 40, 52, 3)).astype("uint8")
    return [
        write_records(folder / f"train-{i}", images[4 * i : 4 * i + 4], range(4 * i, 4 * i + 4))
        for i in range(3)
    ]


def epoch_of(batches, epoch):
    batches.set_epoch(epoch)
    pairs = [*batches]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs]).tolist()


def test_validation_is_the_normalized_center_of_every_image_once(files):
    batches = RecordBatches(files, 5, IMAGES, 35, augment=False)
    assert [len(x) for x, _ in batches] == [5, 5, 2]
    pixels, labels = epoch_of(batches, 0)
    assert sorted(labels) == [*range(IMAGES)]
    decoded = {}
    for record in tf.data.TFRecordDataset(files):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        jpeg = features["image"].bytes_list.value[0]
        image = tf.io.decode_jpeg(jpeg, dct_method="INTEGER_FAST").numpy()
        # 40 * 224 / 256 = 35 of 40 x 52: no resizing
        decoded[features["label"].int64_list.value[0]] = image[2:37, 8:43]
    for image, label in zip(pixels, labels, strict=True):
        np.testing.assert_allclose(image, (decoded[label] / 255 - MEAN) / STD, atol=1e-5)


def test_each_epoch_has_every_image_in_another_order_and_another_crop(files):
    batches = RecordBatches(files, 4, 12, image_size=16, seed=1)
    (x, first), (y, second) = (epoch_of(batches, epoch) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == [*range(IMAGES)] and first != second
    assert x.shape == (12, 16, 16, 3) and x.dtype == np.float32
    same = [np.abs(x[i] - y[second.index(label)]).max() < 0.1 for i, label in enumerate(first)]
    assert not any(same)


def test_files_come_in_another_order_in_each_epoch(files, monkeypatch):
    monkeypatch.setattr(imagenet, "FILES", 1)
    monkeypatch.setattr(imagenet, "BUFFER", 1)  # records stay in the order of their file
    batches = RecordBatches(files, 4, 12, 16)
    orders = [epoch_of(batches, epoch)[1] for epoch in range(4)]
    assert len(set(map(tuple, orders))) > 1
    assert all(
        order[4 * i : 4 * i + 4] == sorted(order[4 * i : 4 * i + 4])
        for order in orders
        for i in range(3)
    )


def test_seed_and_epoch_determine_the_batches_bit_for_bit(files):
    batches = RecordBatches(files, 4, 8, image_size=16, seed=1)  # 8 of 12 images an epoch
    with pytest.raises(RuntimeError, match=r"set_epoch\(0\)"):
        batches[0]
    epochs = [epoch_of(batches, epoch) for epoch in (0, 1)]
    resumed = RecordBatches(files, 4, 8, image_size=16, seed=1)
    resumed.set_epoch(1)
    for index in (0, 0, 1):  # JAX looks at the first before training begins
        x, y = resumed[index]
        np.testing.assert_array_equal(x, epochs[1][0][4 * index : 4 * index + 4])
        assert y.tolist() == epochs[1][1][4 * index : 4 * index + 4]
    with pytest.raises(IndexError, match="0 to 1. Received: 2"):
        resumed[2]
    assert epoch_of(RecordBatches(files, 4, 8, 16, seed=2), 0)[1] != epochs[0][1]


def test_processes_decode_only_their_images_of_the_whole_batches(files, monkeypatch):
    decoded = []

    def counted(jpeg, box, image_size):
        image = decode(jpeg, box, image_size)
        with tf.control_dependencies([tf.numpy_function(decoded.append, [jpeg], [])]):
            return tf.identity(image)

    decode = imagenet.decode
    monkeypatch.setattr(imagenet, "decode", counted)
    train = RecordBatches(files, 4, 12, image_size=16, seed=1)
    train.set_epoch(2)
    validation = RecordBatches(files, 4, 10, 16, augment=False)
    assert validation.batch_sizes == {4, 2} and len(validation) == 3
    for batches in (train, validation):
        whole = list(batches)
        assert sum(len(x) for x, _ in whole) == (12 if batches is train else 10)
        for number in (0, 1):
            decoded.clear()
            for (x, y), (u, v) in zip(whole, Part(batches, number, 2), strict=True):
                rows = slice(number * len(x) // 2, (number + 1) * len(x) // 2)
                np.testing.assert_array_equal(u, x[rows])
                np.testing.assert_array_equal(v, y[rows])
            assert len(decoded) == (6 if batches is train else 5)


def test_records_prepared_by_tfds_are_found(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets", reason="cannot be imported")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(num_classes=9),
        }
    )
    with tfds.core.registered.skip_registration():

        class Imagenet2012(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("5.1.0")

            def _info(self):
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, dl_manager):
                return {"validation": self._generate_examples()}

            def _generate_examples(self):
                for i in range(5):
                    yield i, {"image": np.full((20, 30, 3), 50 * i, "uint8"), "label": i}

    builder = Imagenet2012(data_dir=tmp_path)
    monkeypatch.setattr(tfds, "builder", lambda name, data_dir: builder)
    with pytest.raises(ValueError, match="tfds build imagenet2012"):
        imagenet.prepared("validation")
    builder.download_and_prepare(file_format="tfrecord")
    ((x, labels),) = RecordBatches(imagenet.prepared("validation"), 8, 5, 4, augment=False)
    gray = x.mean(axis=(1, 2)) * STD + MEAN
    expected = 50 / 255 * labels[:, None]
    np.testing.assert_allclose(gray, np.repeat(expected, 3, 1), atol=0.01)


def test_half_of_the_images_are_mirrored(tmp_path):
    ramp = np.repeat(np.arange(0, 240, 4, dtype="uint8")[None, :, None], 60, 0).repeat(3, 2)
    batches = RecordBatches([write_records(tmp_path / "one", [ramp], [0])], 64, 64, 16)
    batches.set_epoch(0)
    x, _ = batches[0]
    rises = x[:, 8, -1, 0] > x[:, 8, 0, 0]
    assert 18 < rises.sum() < 46  # 32, deviation 4
