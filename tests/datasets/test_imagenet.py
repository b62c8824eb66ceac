import itertools

import numpy as np
import pytest

from helpers.harness import without_backend
from zoo.datasets import imagenet
from zoo.datasets.batches import Part, RecordBatches, RecordValidation
from zoo.datasets.imagenet import MEAN, STD, Records

pytestmark = without_backend
tf = pytest.importorskip("tensorflow", reason="tf.data needs TensorFlow, which cannot be imported")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    written = imagenet.write_synthetic(folder, 3, 4, size=(40, 52), classes=10**6)
    assert imagenet.find(folder / "train-*") == Records(folder / "train-*").files == written
    return written


def stored(files):
    """Yield the JPEGs and labels of `files`, read without the code under test."""
    for record in tf.data.TFRecordDataset(list(files)):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        jpeg = features["image/encoded"].bytes_list.value[0]
        yield jpeg, features["image/class/label"].int64_list.value[0]


def labels(dataset):
    return [label for _, batch in dataset for label in batch.numpy().tolist()]


def pixels(dataset):
    return np.concatenate([batch.numpy() for batch, _ in dataset])


def test_validation_is_the_normalized_centre_of_every_image_once(files):
    batches = list(Records(files).validation(5, image_size=35))
    assert [len(batch) for batch, _ in batches] == [5, 5, 2]
    by_label = {}
    for jpeg, label in stored(files):
        image = tf.io.decode_jpeg(jpeg, dct_method="INTEGER_FAST").numpy()
        by_label[label] = image[2:37, 8:43]  # 40 * 224 / 256 = 35 of 40 x 52: no resizing
    assert sorted(labels(batches)) == sorted(by_label)
    for image, label in zip(pixels(batches), labels(batches), strict=True):
        np.testing.assert_allclose(image, (by_label[label] / 255 - MEAN) / STD, atol=1e-5)


@pytest.mark.parametrize("options", [{"first_label": 10**6}, {"classes": 3}])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_labels_outside_the_classes_are_an_error(files, options, split):
    records = Records(files, **options)
    batches = records.train(4, 3, 16) if split == "train" else records.validation(4, 16)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected labels from"):
        list(batches.take(3))


def test_each_epoch_has_every_image_in_another_order_and_another_crop(files):
    epochs = Records(files).train(4, steps_per_epoch=3, image_size=16, seed=1)
    batches = list(epochs.take(6))
    first, second = labels(batches[:3]), labels(batches[3:])
    assert sorted(first) == sorted(second) == sorted(label for _, label in stored(files))
    assert first != second
    x, y = pixels(batches[:3]), pixels(batches[3:])
    assert x.shape == (12, 16, 16, 3) and x.dtype == np.float32
    same = [np.abs(x[i] - y[second.index(label)]).max() < 0.1 for i, label in enumerate(first)]
    assert not any(same)


def test_files_come_in_another_order_in_each_epoch(files, monkeypatch):
    monkeypatch.setattr(imagenet, "FILES", 1)
    monkeypatch.setattr(imagenet, "BUFFER", 1)  # records stay in the order of their file
    batches = list(Records(files).train(4, 3, 16).take(12))  # four epochs, a file a batch
    orders = [tuple(labels(batches[i : i + 3])) for i in range(0, 12, 3)]
    assert len(set(orders)) > 1
    assert set(map(tuple, map(labels, ([b] for b in batches)))) == {
        tuple(label for _, label in stored([file])) for file in files
    }


def test_training_resumes_at_any_epoch_bit_for_bit(files):
    whole = Records(files).train(4, 2, image_size=16, seed=1).take(6)  # 8 of 12 images an epoch
    resumed = Records(files).train(4, 2, image_size=16, seed=1, first_epoch=1).take(4)
    assert labels(resumed) == labels(whole)[8:]
    np.testing.assert_array_equal(pixels(resumed), pixels(whole)[8:])
    other = Records(files).train(4, 2, image_size=16, seed=2).take(6)
    assert labels(other) != labels(whole)


def test_fit_gets_the_batches_of_an_epoch_from_its_start(files):
    batches = RecordBatches(Records(files), 4, 2, image_size=16, seed=1)
    with pytest.raises(RuntimeError, match=r"set_epoch\(0\)"):
        batches[0]
    stream = [*Records(files).train(4, 2, image_size=16, seed=1).take(4)]
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        for index in (0, 0, 1):  # JAX looks at the first before training begins
            x, y = batches[index]
            np.testing.assert_array_equal(x, stream[2 * epoch + index][0].numpy())
            np.testing.assert_array_equal(y, stream[2 * epoch + index][1].numpy())
    with pytest.raises(IndexError, match="0 to 1. Received: 2"):
        batches[2]


def test_processes_decode_only_their_images_of_the_whole_batches(files, monkeypatch):
    records = Records(files)
    decoded = []

    def counted(jpeg, box, image_size):
        image = decode(jpeg, box, image_size)
        with tf.control_dependencies([tf.numpy_function(decoded.append, [jpeg], [])]):
            return tf.identity(image)

    decode = imagenet.decode
    monkeypatch.setattr(imagenet, "decode", counted)
    train = RecordBatches(records, 4, 3, image_size=16, seed=1)
    train.set_epoch(2)
    validation = RecordValidation(records, 4, 10, image_size=16)
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
            if batches is validation:  # training decodes ahead, into the next epoch
                assert len(decoded) == 5


def test_hosts_share_the_files_and_have_as_many_batches_each(files):
    hosts = [Records(files, shard_index=i, num_shards=2) for i in (0, 1)]
    own = [labels(host.validation(8, 16)) for host in hosts]
    assert [len(part) for part in own] == [8, 4]
    assert sorted(sum(own, [])) == sorted(label for _, label in stored(files))
    small = list(hosts[1].train(3, 2, 16).take(2))  # 6 of its 4: two are repeated
    assert len(labels(small)) == 6 and set(labels(small)) == set(own[1])


def test_a_box_has_the_area_and_the_aspect_of_the_recipe():
    uniform = np.random.default_rng(0).random((300, 5, 10)).astype("float32")
    shape = tf.constant([300, 500])
    draw = tf.function(imagenet.random_box)
    boxes = np.array([draw(shape, u) for u in uniform])
    assert (boxes[:, :2] >= 0).all() and (boxes[:, :2] + boxes[:, 2:] <= [300, 500]).all()
    area, aspect = boxes[:, 2] * boxes[:, 3] / 150_000, boxes[:, 3] / boxes[:, 2]
    assert 0.078 < area.min() < 0.1 and 0.7 < area.max() < 1.01
    assert 0.74 < aspect.min() < 0.77 and 1.30 < aspect.max() < 1.35
    room = (boxes[:, 0] + 0.5) / (301 - boxes[:, 2])
    assert abs(room.mean() - 0.5) < 0.05  # the corner is anywhere; deviation 0.017


def test_where_no_box_fits_it_is_the_central_square():
    uniform = np.full((5, 10), 0.99, "float32")
    assert imagenet.random_box(tf.constant([9, 400]), uniform).numpy().tolist() == [0, 195, 9, 9]
    assert imagenet.centre_box(tf.constant([3, 1]), 0.2).numpy().tolist() == [1, 0, 1, 1]


def test_half_of_the_images_are_mirrored(tmp_path):
    ramp = np.repeat(np.arange(0, 240, 4, dtype="uint8")[None, :, None], 60, 0).repeat(3, 2)
    features = {
        "image": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(ramp).numpy()])
        ),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
    }
    record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    with tf.io.TFRecordWriter(str(tmp_path / "one")) as writer:
        writer.write(record)
    records = Records((tmp_path / "one",), keys=("image", "label"), first_label=1)
    batch, names = next(iter(records.train(64, 1, 16)))
    rises = batch.numpy()[:, 8, -1, 0] > batch.numpy()[:, 8, 0, 0]
    assert 18 < rises.sum() < 46  # 32, deviation 4
    assert set(names.numpy().tolist()) == {0}  # the first label is the network's 0


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
    batch, names = next(iter(imagenet.prepared("validation").validation(8, 4)))
    grey = batch.numpy().mean(axis=(1, 2)) * STD + MEAN
    expected = 50 / 255 * names.numpy()[:, None]
    np.testing.assert_allclose(grey, np.repeat(expected, 3, 1), atol=0.01)


def test_a_file_is_whole_or_absent(tmp_path, monkeypatch):
    calls = itertools.count()
    encode = tf.io.encode_jpeg
    fails = lambda *a, **k: encode(*a, **k) if next(calls) < 3 else 1 / 0  # noqa: E731
    monkeypatch.setattr(tf.io, "encode_jpeg", fails)
    with pytest.raises(ZeroDivisionError):
        imagenet.write_synthetic(tmp_path, 2, 2, size=(8, 8))
    assert [path.name for path in tmp_path.iterdir()] == ["train-00000-of-00002"]


def test_synthetic_records_have_the_size_of_imagenet_s(tmp_path):
    files = imagenet.write_synthetic(tmp_path, 1, 3)
    weights = [len(jpeg) for jpeg, _ in stored(files)]
    assert 90_000 < np.mean(weights) < 130_000  # 110 kB


def test_files_that_cannot_be_shared_are_an_error(files, tmp_path):
    with pytest.raises(ValueError, match="matches none. Write it with a wildcard"):
        imagenet.find(tmp_path / "train-*")
    with pytest.raises(ValueError, match="Received: 3 files for 4 hosts"):
        Records(files, num_shards=4)
    with pytest.raises(ValueError, match="shard_index=2, num_shards=2"):
        Records(files, shard_index=2, num_shards=2)
