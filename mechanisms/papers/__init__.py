"""Reference implementations from papers: mechanisms that no transform uses, and a calibration to compare with."""
