from rlvla.testing import ModelConformance


class TestTiny(ModelConformance):
    name = "tiny"
    config = {"cameras": ("primary", "wrist")}
    variations = ({"horizon": 2, "bins": 7, "basis": 3, "image_size": 32, "patch": 8, "temperature": 1.6},)


class TestTinyWithoutPictures(ModelConformance):
    name = "tiny"
    config = {"cameras": ()}
    variations = ({"cameras": ("primary",), "patch": 8, "temperature": 1.6},)
