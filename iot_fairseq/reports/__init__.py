"""What a trained model does, to be read by people: which order each sentence takes and what that
gains (``iot-report``), and how systems compare (``iot-compare``)."""
